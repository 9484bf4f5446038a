"""The rows of csrc/ops/pointwise.yaml, whose expressions eager kernels and compiled ones share."""

from __future__ import annotations

import functools
import json
import re

import torch
from torch._inductor.virtualized import V

from torch_anymps._load import package_file

from .dtypes import CODE, common_type, operand, register_type, wrapped

TABLE = "pointwise_table.json"
ROW = "row of pointwise.yaml"  # constraints of ops.inline_asm_elementwise, whose asm then is a row's name
BOOL_RULES = ("comparison", "unary_to_bool")


@functools.cache
def rows() -> dict[str, dict]:
    """Rows by the name of their kernels: what csrc/ops/pointwise.yaml says of each, as JSON objects."""
    return {row["name"]: row for row in json.loads(package_file(TABLE).read_text())}


def arithmetic_of(row: dict, kind: str) -> str:
    """Of the kinds of arithmetic that a row has expressions for, the one for operands of a register type."""
    wanted = {"float": ["float"], "bool": ["bool", "int", "float"]}.get(kind, ["int", "float"])
    for name in wanted:
        if name in row["expr"]:
            return name
    raise NotImplementedError(f"{row['name']} has no expression for operands of type {kind}")


def of_result(row: dict, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a row's result for operands of a common dtype."""
    return torch.bool if row["rule"] in BOOL_RULES else dtype


def expressions(row: dict, operands: list, scalars: list | None = None) -> list[str]:
    """The texts of a row's outputs for operands: variables of a kernel, or numbers, in the order of its inputs."""
    kind = common_type(*operands)
    arithmetic = arithmetic_of(row, kind)
    V.kernel.is_heavy |= row["heavy"]
    register = "float" if arithmetic == "float" else "int" if kind == "bool" else kind
    names = {name: operand(value, register) for name, value in zip(row["inputs"], operands, strict=True)}
    for name, value in zip(row["scalars"], scalars or [], strict=True):
        names[name] = operand(value, register)
    names.setdefault("alpha", "1")
    names["kCommon"] = CODE.get(_result_dtype(operands), "kF32")
    result = "bool" if row["rule"] in BOOL_RULES else register
    texts = []
    for expr in row["expr"][arithmetic]:
        text = re.sub(r"(?<![\w:])[A-Za-z_]\w*(?!\w*::)", lambda m: names.get(m[0], m[0]), expr)
        text = f"{result}({text})"
        if result == "int" and kind == "bool":
            text = f"({text} != 0)"
        texts.append(wrapped(text, _result_dtype(operands)) if result == "int" else text)
    return texts


def _result_dtype(operands: list) -> torch.dtype | None:
    dtypes = [v.dtype for v in operands if register_type(v) is not None and hasattr(v, "dtype")]
    return functools.reduce(torch.promote_types, dtypes) if dtypes and None not in dtypes else None
