"""Reads csrc/ops/pointwise.yaml: a row becomes a Slang functor, the C++ that calls it, and a line of a table.

A row:
    name      of its kernels; the operator's base name where it is left out
    op        overload, or list of them, of native_functions.yaml that the row registers; none: hand-written C++ calls
              kernels::pointwise(iter, kernels::rows::<name>)
    rule      how the iterator is built, in TensorIterator's words (RULES); structured operators bring their own
    expr      Slang, over operands and scalar arguments by their names in the schema; a list for two outputs; or a
              mapping from kinds of arithmetic (KINDS), or several with spaces between, to such texts
    types     kinds of arithmetic where expr is no mapping: float (the default), int, bool, complex, uint
    inputs    operands of the functor, where they are not the tensor arguments of the first op
    scalars   scalar arguments of the functor, where no op says them
    variants  {argument: {value: {expr: ..., error: ...}}}: a string or bool argument chooses between texts
    none      {argument: number}: what the kernel gets for an optional argument that is left out
    label     name in the error for an unsupported dtype; that of the CPU kernel, <name>_cpu where it is left out
    opmath    true: CPU scalars are not rounded to the common dtype
    bits      true: operands are moved as integers of their size
    float8    true: floats of 8 bits are computed in float32, for operators that the CPU has for them
    bounds    min, max or "min max": what the numbers among the inputs are. As PyTorch's CPU kernels do from 2.15 on,
              those beyond an integer's range are cut to it; a minimum above it and a maximum below it are errors
    foreach   _foreach_ operator, or list of them, that runs the row over lists of floating point tensors; an empty
              list makes the kernels only
    result    tensor argument whose dtype a functional operator's result has, where the common dtype is not it
    heavy     true: a functor of some hundred instructions, of which the dense kernel holds one copy only; functors of
              complex numbers are always heavy
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import torchgen.api.structured as structured_api
import yaml
from torchgen.api.types import NativeSignature
from torchgen.context import native_function_manager
from torchgen.model import NativeFunction

from . import foreach
from .pointwise_shader import DTYPES, KINDS, REAL, shader
from .pointwise_table import pointwise_table
from .registration import Entry, Family, family_outputs, shard_of
from .schema import CodegenError, Schema, marker_name, pytorch_schema

SHARDS = 6
COMPLEX_SHARDS = 2
# Rule -> the C++ that builds the iterator of operators that are not structured; {out} and the operands are tensors.
RULES = {
    "nullary": "at::TensorIterator::borrowing_nullary_op({out})",
    "unary": "at::TensorIterator::unary_op({out}, {0})",
    "unary_float": "at::TensorIterator::unary_float_op({out}, {0})",
    "unary_to_bool": "kernels::unary_to_bool_op({out}, {0})",
    "unary_to_real": "kernels::unary_to_real_op({out}, {0})",
    "unary_float_to_real": "kernels::unary_float_to_real_op({out}, {0})",
    "binary": "at::TensorIterator::binary_op({out}, {0}, {1})",
    "binary_float": "at::TensorIterator::binary_float_op({out}, {0}, {1})",
    "binary_same": "kernels::binary_same_op({out}, {0}, {1})",
    "comparison": "at::TensorIterator::comparison_op({out}, {0}, {1})",
    "ternary": "kernels::ternary_op({out}, {0}, {1}, {2})",
}
BOUNDS = {"min": "kMinBound", "max": "kMaxBound"}


@dataclass
class Functor:
    """One set of kernels: the texts of a row, or of one of its variants."""

    name: str
    exprs: dict[str, list[str]]  # kind of arithmetic -> one text an output
    label: str  # in the error for an unsupported dtype

    def dtypes(self) -> int:
        return sum(1 << code for kind in self.exprs for code in DTYPES[kind].values())


@dataclass
class Row:
    name: str
    rule: str
    ops: list[str]
    inputs: list[str]
    scalars: list[str]
    functors: list[Functor]
    flags: list[str]
    choice: str = ""  # the argument that chooses between functors
    choices: list[str | bool | None] = field(default_factory=list)
    error: str = ""
    none: dict[str, float] = field(default_factory=dict)
    result: str = ""
    foreach: list[str] | None = None


def outputs() -> list[str]:
    files = ["anymps/kernels/pointwise_kernels.h", "pointwise_table.json", *foreach.outputs()]
    for shard in range(SHARDS):
        files += family_outputs(_stem(shard)) + [f"anymps/{_stem(shard)}.cpp", f"shaders/{_stem(shard)}.slang"]
    return files + [f"shaders/pointwise_complex_{shard}.slang" for shard in range(COMPLEX_SHARDS)]


def families(table: Path) -> list[Family]:
    schema = pytorch_schema()
    rows = read_rows(table, schema)
    result = []
    for shard in range(SHARDS):
        mine = [row for row in rows if shard_of(row.name, SHARDS) == shard]
        entries, definitions = [], []
        for row in mine:
            found = [d for op in row.ops for d in _definitions(row, op, schema, f"{table}: {row.name}")]
            for entry, text in dict(found).items():  # variants of one operator may be named more than once
                entries.append(entry)
                definitions.append(text)
        texts = {
            f"anymps/{_stem(shard)}.cpp": _source(shard, definitions),
            f"shaders/{_stem(shard)}.slang": shader(mine, REAL),
        }
        result.append(Family(_stem(shard), entries, texts))
    for shard in range(COMPLEX_SHARDS):
        mine = [row for row in rows if shard_of(row.name, COMPLEX_SHARDS) == shard]
        result[0].texts[f"shaders/pointwise_complex_{shard}.slang"] = shader(mine, ["c64"])
    result.append(foreach.family(rows, schema, str(table)))
    result[0].texts["anymps/kernels/pointwise_kernels.h"] = _kernels_header(rows)
    result[0].texts["pointwise_table.json"] = pointwise_table(rows, DTYPES)
    return result


def read_rows(table: Path, schema: Schema) -> list[Row]:
    """Raises CodegenError naming the row for a mistake in it."""
    rows: dict[str, Row] = {}
    try:
        data_rows = yaml.load(table.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise CodegenError(f"{table} is no YAML: {error}") from None
    for data in data_rows:
        where = f"{table}: {data.get('name') or data.get('op')}"
        try:
            row = _row(data, schema)
        except CodegenError as error:
            raise CodegenError(f"{where}: {error}") from None
        for functor in row.functors:
            if functor.name in rows:
                raise CodegenError(f"{where}: there is another row named '{functor.name}'.")
            rows[functor.name] = row
    unique = {id(row): row for row in rows.values()}
    return list(unique.values())


def _stem(shard: int) -> str:
    return f"pointwise_{shard}"


_KEYS = {
    "name",
    "op",
    "rule",
    "expr",
    "types",
    "inputs",
    "scalars",
    "variants",
    "label",
    "opmath",
    "bits",
    "float8",
    "bounds",
    "error",
    "none",
    "result",
    "foreach",
    "heavy",
}

_FLAGS = {"opmath": "kOpmath", "bits": "kBits", "heavy": "kHeavy", "float8": "kFloat8"}


def _row(data: dict, schema: Schema) -> Row:
    unknown = set(data) - _KEYS
    if unknown:
        raise CodegenError(f"unknown keys: {', '.join(sorted(unknown))}.")
    ops = [data["op"]] if isinstance(data.get("op"), str) else list(data.get("op", []))
    name = data.get("name") or ops[0].split(".")[0]
    tensors, others = _arguments(schema.function(ops[0])) if ops else ([], [])
    comparison = data.get("rule") == "comparison"
    inputs = data.get("inputs", ["self", "other"] if comparison else tensors)
    choice, variants = next(iter(data.get("variants", {}).items()), ("", {}))
    types = data.get("types", ["float"])
    types = types.split() if isinstance(types, str) else types
    label = data.get("label", f"{name}_cpu")
    functors = [
        Functor(f"{name}_{_word(value)}", _exprs(variant["expr"], types), variant.get("label", label))
        for value, variant in variants.items()
    ] or [Functor(name, _exprs(data["expr"], types), label)]
    if ops and data.get("rule") not in RULES and schema.structured_group(ops[0]) is None:
        raise CodegenError(f"the rule must be one of {', '.join(RULES)}.")
    words = {word for functor in functors for texts in functor.exprs.values() for word in _words(" ".join(texts))}
    scalars = data.get("scalars", [a for a in others if a in words and a not in inputs])
    flags = [flag for key, flag in _FLAGS.items() if data.get(key)]
    bounds = data.get("bounds", "").split()
    if set(bounds) - set(BOUNDS):
        raise CodegenError(f"bounds are {' and '.join(BOUNDS)}.")
    flags += [BOUNDS[bound] for bound in bounds]
    if len(inputs) > 4 or len(scalars) > 6:
        raise CodegenError("a functor has at most 4 inputs and 6 scalars.")
    return Row(
        name,
        data.get("rule", ""),
        ops,
        inputs,
        scalars,
        functors,
        flags,
        choice,
        list(variants),
        data.get("error", f"{name}: unknown value of {choice}"),
        data.get("none", {}),
        data.get("result", ""),
        [data["foreach"]] if isinstance(data.get("foreach"), str) else data.get("foreach"),
    )


def _exprs(expr, types: list[str]) -> dict[str, list[str]]:
    by_kind = expr if isinstance(expr, dict) else dict.fromkeys(types, expr)
    by_kind = {kind: text for kinds, text in by_kind.items() for kind in kinds.split()}
    unknown = set(by_kind) - set(KINDS)
    if unknown:
        raise CodegenError(f"the kinds of arithmetic are {', '.join(KINDS)}, not {', '.join(sorted(unknown))}.")
    texts = {kind: text if isinstance(text, list) else [text] for kind, text in by_kind.items()}
    if len({len(t) for t in texts.values()}) != 1 or len(next(iter(texts.values()))) > 2:
        raise CodegenError("every kind of arithmetic has the same one or two outputs.")
    return {kind: [str(t) for t in text] for kind, text in texts.items()}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _word(value: str | bool | None) -> str:
    return re.sub(r"\W", "_", str(value).lower())


def _arguments(function: NativeFunction) -> tuple[list[str], list[str]]:
    """Names of the tensor inputs and of the other inputs of an operator, out arguments left out."""
    inputs = function.func.arguments.flat_non_out
    tensors = [a.name for a in inputs if a.type.is_tensor_like()]
    return tensors, [a.name for a in inputs if a.name not in tensors]


# --- C++ -----------------------------------------------------------------------------------------------------------


def _kernels_header(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        flags = " | ".join(f"PointwiseKernel::{flag}" for flag in row.flags) or "0"
        for f in row.functors:
            lines.append(
                f'inline constinit const PointwiseKernel {f.name}{{"{f.name}", "{f.label}", {len(row.inputs)}, '
                f"0x{f.dtypes():x}, {flags}}};\n"
            )
    return f"""\
// Generated by tools/gen_registration.py from csrc/ops/pointwise.yaml.
#pragma once

#include "kernels/pointwise_launcher.h"

namespace anymps::kernels::rows {{

{"".join(lines)}
}}  // namespace anymps::kernels::rows
"""


def _source(shard: int, definitions: list[str]) -> str:
    return f"""\
// Generated by tools/gen_registration.py from csrc/ops/pointwise.yaml.
#include <ATen/ops/empty.h>
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/{_stem(shard)}_ops.h>

#include "kernels/pointwise_rules.h"

namespace anymps::ops {{

using kernels::pointwise;
namespace rows = kernels::rows;

{chr(10).join(definitions)}
}}  // namespace anymps::ops
"""


def _definitions(row: Row, op: str, schema: Schema, where: str) -> list[tuple[Entry, str]]:
    group = schema.structured_group(op)
    if group is not None:
        kernel = marker_name(op)
        with native_function_manager(group.out):
            declared = ", ".join(a.defn() for a in structured_api.impl_arguments(group))
        body = _launch(row, group.out, "*this")
        return [(Entry(op, kernel, True, where), f"void structured_{kernel}::impl({declared}) {{\n{body}}}\n")]
    return [_plain(row, function, where) for function in schema.own_variants(op)]


def _plain(row: Row, function: NativeFunction, where: str) -> tuple[Entry, str]:
    op = str(function.func.name)
    kernel = marker_name(op)
    with native_function_manager(function):
        signature = NativeSignature(function.func, symint=False).defn(name=kernel)
    tensors, _ = _arguments(function)
    outs = [a.name for a in function.func.arguments.out]
    kind = function.func.kind().name
    lines = []
    if kind == "functional":
        empty = f" = at::empty({{0}}, {row.result}.options())" if row.result else ""
        lines.append(f"Tensor result{empty};\n")
        out, returned = "result", "iter.output()"
    elif kind == "inplace":
        out = returned = "self"
    else:
        out = returned = outs[0]
    lines.append(f"auto iter = {RULES[row.rule].format(*tensors, out=out)};\n")
    lines.append(_launch(row, function, "iter"))
    lines.append(f"return {returned};\n")
    text = "".join("    " + line.lstrip() if not line.startswith("    ") else line for line in lines)
    return Entry(op, kernel, False, where), f"{signature} {{\n{text}}}\n"


def _launch(row: Row, function: NativeFunction, iterator: str) -> str:
    """Statements that run the row; where an argument chooses, a chain over its values."""
    tensors, others = _arguments(function)
    # PyTorch's meta functions may add operands that no argument names, and wrap the scalar of a comparison.
    immediates = [name for name in row.inputs if name in others and row.rule != "comparison"]
    unknown = [name for name in row.scalars if name not in others]
    if unknown:
        raise CodegenError(f"'{function.func.name}' has no argument {', '.join(unknown)}.")
    values = ", ".join(
        f"{name}.value_or({row.none[name]})" if name in row.none else name for name in [*immediates, *row.scalars]
    )
    arguments = f", {{{values}}}" if values else ""
    if not row.choice:
        return f"    pointwise({iterator}, rows::{row.functors[0].name}{arguments});\n"
    argument = next(a for a in function.func.arguments.flat_non_out if a.name == row.choice)
    optional = argument.type.is_nullable()
    text = "    "
    for value, functor in zip(row.choices, row.functors, strict=True):
        text += f"if ({_equals(row.choice, value, optional)}) {{\n"
        text += f"        pointwise({iterator}, rows::{functor.name}{arguments});\n    }} else "
    return text + f'{{\n        TORCH_CHECK(false, "{row.error}");\n    }}\n'


def _equals(name: str, value: str | bool | None, optional: bool) -> str:
    if value is None:
        return f"!{name}.has_value()"
    if isinstance(value, bool):
        return name if value else f"!{name}"
    return f'{name}.has_value() && *{name} == "{value}"' if optional else f'{name} == "{value}"'


# --- the table for tests, docs and torch.compile --------------------------------------------------------------------
