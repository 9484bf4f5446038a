"""Writes families' declarations and dispatcher registrations, by driving PyTorch's torchgen out of tree.

A table generator (pointwise, reduction) hands in its operators as a `Family`:

    Family("pointwise_0", [Entry("add.out", "add_out", structured=True), ...], {"anymps/ops/pointwise_0.cpp": text})

and gets `anymps/ops/pointwise_0_ops.h` (declarations in namespace anymps::ops) beside its own text. What registers
them is in `anymps/ops/registration_<n>.cpp`, several families a file: most of such a file's compile time is PyTorch's
headers. A structured entry names the `.out` overload: the functional, in-place and out variants are registered, all
calling `void structured_<kernel>::impl(...)`. Any other entry registers that one overload, calling `<kernel>(...)`.
An entry is for the key MPS, or for one of sparse tensors; an entry `of_aten` calls ATen's own at::native::<kernel>.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchgen.api.structured import impl_arguments
from torchgen.api.types import kernel_signature
from torchgen.context import native_function_manager
from torchgen.dest import RegisterDispatchKey, compute_native_function_declaration, gen_registration_helpers
from torchgen.model import (
    BackendIndex,
    BackendMetadata,
    DeviceCheckType,
    DispatchKey,
    NativeFunction,
    NativeFunctionsGroup,
)
from torchgen.selective_build.selector import SelectiveBuilder
from torchgen.utils import Target

from .schema import CodegenError, Schema, pytorch_schema

NAMESPACE = "anymps::ops"
FOLDER = "anymps/ops"
REGISTRATIONS = 8
# Their kernels check devices, as lengths may lie on the CPU.
OF_HOST_LENGTHS = ("_ctc_loss.Tensor", "_ctc_loss_backward.Tensor")


@dataclass(frozen=True)
class Entry:
    op: str  # as in native_functions.yaml: "add.out"
    kernel: str  # the C++ name: structured_<kernel>::impl, or the function <kernel>
    structured: bool
    where: str = ""  # file:line that asked for it, for messages
    key: str = "MPS"  # the dispatch key
    of_aten: bool = False  # the kernel is ATen's own, in at::native
    row: bool = False  # defined by ANYMPS_ROW, which takes the signature from the header


@dataclass
class Family:
    """Operators with one generated header, and texts that its generator adds (path in out_dir -> text)."""

    stem: str
    entries: list[Entry]
    texts: dict[str, str] = field(default_factory=dict)


def family_outputs(stem: str) -> list[str]:
    """The header of a family, relative to the output folder."""
    return [f"{FOLDER}/{stem}_ops.h"]


def registration_outputs() -> list[str]:
    """The sources that register all families, relative to the output folder."""
    return [f"{FOLDER}/registration_{n}.cpp" for n in range(REGISTRATIONS)]


def write_families(families: list[Family], out_dir: Path, schema: Schema | None = None) -> list[Path]:
    """Writes headers, texts and registrations under out_dir, each only if its text changed. Returns the paths.

    A stem may hold folders ("matmul/gemm"). Raises CodegenError for an unknown operator, or one handed in twice.
    """
    schema = schema or pytorch_schema()
    check_unique(entry for family in families for entry in family.entries)
    texts: dict[str, str] = {}
    groups: list[list[_Batch]] = [[] for _ in range(REGISTRATIONS)]
    for family in families:
        batches = _batches(family, schema)
        rows = {entry.kernel for entry in family.entries if entry.row}
        texts[family_outputs(family.stem)[0]] = _header(family.stem, batches, rows)
        texts |= family.texts
        groups[shard_of(family.stem, REGISTRATIONS)] += batches
    for name, group in zip(registration_outputs(), groups, strict=True):
        texts[name] = _registration_source(group)
    for name, text in texts.items():
        write_if_changed(out_dir / name, text)
    return [out_dir / name for name in texts]


def shard_of(name: str, shards: int) -> int:
    """A fixed shard for a name: adding a row to a table, or a marker to a source, recompiles one shard only."""
    return zlib.crc32(name.encode()) % shards


def check_unique(entries: Iterable[Entry]) -> None:
    """Raises CodegenError if an overload would be registered twice, naming both places."""
    schema = pytorch_schema()
    claimed: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        for op in overloads(entry, schema):
            other = claimed.setdefault((entry.key, op), entry)
            if other is not entry:
                key = "" if entry.key == "MPS" else f" for {entry.key}"
                raise CodegenError(f"'{op}' is registered twice{key}: by {_place(other)} and by {_place(entry)}.")


def overloads(entry: Entry, schema: Schema) -> list[str]:
    """The overloads that an entry registers: a structured one stands for its whole group."""
    target = _target(entry, schema)
    functions = target.functions() if isinstance(target, NativeFunctionsGroup) else [target]
    return [str(f.func.name) for f in functions]


def write_if_changed(path: Path, text: str) -> None:
    """Leaves the file and its time alone where the text is the same, so that ninja rebuilds nothing."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _place(entry: Entry) -> str:
    return entry.where or f"the kernel {entry.kernel}"


def _target(entry: Entry, schema: Schema) -> NativeFunction | NativeFunctionsGroup:
    function = schema.function(entry.op)
    if not entry.structured:
        # PyTorch's own kernel for all devices leaves the check to TensorIterator, which lets numbers on the CPU pass.
        by_iterator = "pointwise" in function.tags and schema.is_composite(function)
        unchecked = by_iterator or entry.op in OF_HOST_LENGTHS
        return replace(function, device_check=DeviceCheckType.NoCheck) if unchecked else function
    group = schema.structured_group(entry.op)
    if group is None:
        raise CodegenError(f"{_place(entry)}: '{entry.op}' is not the out overload of a structured operator.")
    return group


@dataclass(frozen=True)
class _Batch:
    """Operators of one family that share a dispatch key and the namespace of their kernels."""

    stem: str
    key: str
    of_aten: bool
    targets: list[NativeFunction | NativeFunctionsGroup]
    backend: BackendIndex


def _batches(family: Family, schema: Schema) -> list[_Batch]:
    batches = []
    for key, of_aten in dict.fromkeys((entry.key, entry.of_aten) for entry in family.entries):
        entries = [entry for entry in family.entries if (entry.key, entry.of_aten) == (key, of_aten)]
        targets = [_target(entry, schema) for entry in entries]
        batches.append(_Batch(family.stem, key, of_aten, targets, _backend_index(entries, targets)))
    return batches


def _backend_index(entries: list[Entry], targets: list[NativeFunction | NativeFunctionsGroup]) -> BackendIndex:
    index = {}
    for entry, target in zip(entries, targets, strict=True):
        primary = target.out if isinstance(target, NativeFunctionsGroup) else target
        namespace = "at::native" if entry.of_aten else NAMESPACE
        index[primary.func.name] = BackendMetadata(entry.kernel, entry.structured, namespace)
    key = DispatchKey.parse(entries[0].key)
    return BackendIndex(dispatch_key=key, use_out_as_primary=True, external=False, device_guard=True, index=index)


_HEADER_INCLUDES = """\
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorOptions.h>

#include <optional>
#include <tuple>
#include <vector>
"""


def _signature(target: NativeFunction | NativeFunctionsGroup, backend: BackendIndex, kernel: str) -> str:
    """That of a kernel's definition, its arguments named as in native_functions.yaml."""
    if isinstance(target, NativeFunctionsGroup):
        with native_function_manager(target):
            arguments = ", ".join(argument.decl() for argument in impl_arguments(target))
        return f"void structured_{kernel}::impl({arguments})"
    with native_function_manager(target):
        return kernel_signature(target, backend).defn(name=kernel)


def _row_signatures(batches: list[_Batch], rows: set[str]) -> str:
    named = [(t, batch.backend, batch.backend.get_kernel(t).kernel) for batch in batches for t in batch.targets]
    defined = [f"#define ANYMPS_SIGNATURE_{k} {_signature(t, b, k)}" for t, b, k in named if k in rows]
    return "\n".join(["", *defined, ""]) if defined else ""


def _header(stem: str, batches: list[_Batch], rows: set[str]) -> str:
    groups = [t for batch in batches for t in batch.targets if isinstance(t, NativeFunctionsGroup)]
    of_aten = [f for batch in batches if batch.of_aten for f in batch.targets]
    needed = {f"{g.root_name}_meta" for g in groups} | {f"{f.root_name}_native" for f in of_aten}
    metas = "".join(f"#include <ATen/ops/{name}.h>\n" for name in sorted(needed))
    declarations = []
    for batch in batches:
        for target in [] if batch.of_aten else batch.targets:
            for text in compute_native_function_declaration(target, batch.backend):
                declarations.append(text.replace("TORCH_API ", "").strip())
    # Only where a default names it: the headers of all other families stay as they are.
    if any("at::Reduction" in text for text in declarations):
        metas = f"#include <ATen/core/Reduction.h>\n{metas}"
    return f"""\
// Generated by tools/gen_registration.py for {stem}.
#pragma once

{_HEADER_INCLUDES}{metas}
#include "ops/registration.h"
{'#include "ops/row.h"' if rows else ""}
namespace {NAMESPACE} {{

{chr(10).join(declarations)}

}}  // namespace {NAMESPACE}
{_row_signatures(batches, rows)}"""


_REGISTER_INCLUDES = """\
#include <ATen/DeviceGuard.h>
#include <ATen/core/op_registration/adaption.h>
#include <torch/library.h>

#include "ops/materialize.h"
"""

# ATen/native/Resize.h, for this one function, would cost a second per source.
_STRUCTURED_INCLUDES = """\
#include <ATen/mps/EmptyTensor.h>

namespace at::native {
TORCH_API bool resize_output(const Tensor& output, IntArrayRef shape);
}
"""


def _registration_source(group: list[_Batch]) -> str:
    first = "// Generated by tools/gen_registration.py.\n"
    if not group:
        return first + "// No family of operators falls into this file.\n"
    declared = "".join(f"#include <{FOLDER}/{stem}_ops.h>\n" for stem in dict.fromkeys(b.stem for b in group))
    structured = [b for b in group if any(isinstance(t, NativeFunctionsGroup) for t in b.targets)]
    helpers = "\n".join(gen_registration_helpers(structured[0].backend)) if structured else ""
    includes = _REGISTER_INCLUDES + (_STRUCTURED_INCLUDES if structured else "")
    definitions = [
        _materializing(text, target)
        for batch in group
        for target in batch.targets
        for text in _run(Target.ANONYMOUS_DEFINITION, [target], batch)
    ]
    keys = dict.fromkeys(batch.key for batch in group)
    blocks = [_registration_block(key, [batch for batch in group if batch.key == key]) for key in keys]
    return f"""\
{first}{declared}
{includes}
namespace at {{
namespace {{
{helpers}
{"".join(definitions)}
{chr(10).join(blocks)}
}}  // namespace
}}  // namespace at
"""


_WRAPPER = re.compile(r"^.*\bwrapper_MPS\w*\((.*)\) \{\n", re.MULTILINE)


def _materializing(text: str, target: NativeFunction | NativeFunctionsGroup) -> str:
    """Copy-on-write storages of what a wrapper writes get their own memory before anything takes their address.

    Operators tagged inplace_view write sizes and storages, not elements.
    """
    functions = list(target.functions()) if isinstance(target, NativeFunctionsGroup) else [target]
    if "inplace_view" in functions[0].tags:
        return text
    arguments = [a for f in functions for a in f.func.arguments.flat_all]
    written = dict.fromkeys(a.name for a in arguments if a.annotation is not None and a.annotation.is_write)

    def calls(wrapper: re.Match) -> str:
        # In a group one variant may write what another reads.
        names = [n for n in written if re.search(rf"\b{n}\b", wrapper[1])]
        names = [n for n in names if not re.search(rf"const at::Tensor & {n}\b", wrapper[1])]
        return wrapper[0] + "".join(f"  {NAMESPACE}::materialize({name});\n" for name in names)

    return _WRAPPER.sub(calls, text) if written else text


def _registration_block(key: str, batches: list[_Batch]) -> str:
    listed = [(batch.stem, _run(Target.REGISTRATION, batch.targets, batch)) for batch in batches]
    registrations = "\n".join(f"    // {stem}\n{_one_line_each(calls)}" for stem, calls in listed)
    return f"TORCH_LIBRARY_IMPL(aten, {key}, m) {{\n{registrations}\n}}\n"


def _one_line_each(registrations: list[str]) -> str:
    """Function pointers instead of TORCH_FN: functions of one type share what PyTorch instantiates for boxed calls."""
    calls = (re.sub(r"TORCH_FN\((\w+)\)", r"&\1", re.sub(r",\n", ", ", text.strip())) for text in registrations)
    return "\n".join(f"    {call}" for call in calls)


def _run(target: Target, ops: list[NativeFunction | NativeFunctionsGroup], batch: _Batch) -> list[str]:
    generator = RegisterDispatchKey(
        batch.backend,
        target,
        SelectiveBuilder.get_nop_selector(),
        rocm=False,
        symint=batch.of_aten,
        class_method_name=None,
        skip_dispatcher_op_registration=False,
    )
    return [text for op in ops for text in generator(op)]
