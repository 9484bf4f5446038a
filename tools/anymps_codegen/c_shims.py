"""C shims of ATen's operators for mps: what C++ modules of Inductor call, and PyTorch's own build has for Macs only.

Every operator of torchgen's list of Inductor's fallbacks gets one, also those that PyTorch has no shim of on Macs. A
shim calls the operator by the dispatcher, below autograd.
"""

from __future__ import annotations

from pathlib import Path

from torchgen.aoti.fallback_ops import inductor_fallback_ops
from torchgen.gen_aoti_c_shim import (
    gen_declaration_and_definition,
    gen_static_dispatch_backend_call,
    get_fallback_op_name,
)
from torchgen.model import NativeFunction, Variant

from .registration import shard_of, write_if_changed
from .schema import Schema, pytorch_schema

FOLDER = "anymps/aoti"
HEADER = f"{FOLDER}/c_shim_mps.h"
SHARDS = 2

_HEADER = """// ATen's operators for modules that Inductor writes in C++ for mps. Written by tools/gen_registration.py.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

extern "C" {{

{}

}}
"""

_SOURCE = """// Written by tools/gen_registration.py.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <{header}>
{includes}

using namespace torch::aot_inductor;

{definitions}
"""

_TRY = "AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({"


def outputs() -> list[str]:
    """The files of write(), relative to the output folder."""
    return [HEADER, *(f"{FOLDER}/c_shim_mps_{n}.cpp" for n in range(SHARDS))]


def write(out: Path, schema: Schema | None = None) -> list[Path]:
    """Writes the header and the sources of all shims, each only if its text changed."""
    schema = schema or pytorch_schema()
    functions = [schema.function(op) for op in schema.ops()]
    wanted = sorted((name, f) for f in functions if (name := get_fallback_op_name(f)) in inductor_fallback_ops)
    declarations: list[str] = []
    shards: list[list[tuple[NativeFunction, str]]] = [[] for _ in range(SHARDS)]
    for name, function in wanted:
        try:
            declaration, definition = gen_declaration_and_definition(
                function.func, "mps", _call_of(function), inductor_fallback_ops[name]
            )
        except NotImplementedError:  # a type that C lacks; Inductor calls such an operator in another way
            continue
        declarations.append(declaration)
        shards[shard_of(name, SHARDS)].append((function, _below_autograd(definition)))
    texts = {HEADER: _HEADER.format("\n".join(declarations))}
    for path, shard in zip(outputs()[1:], shards, strict=True):
        includes = sorted({f"#include <ATen/ops/{function.root_name}.h>" for function, _ in shard})
        texts[path] = _SOURCE.format(
            header=HEADER, includes="\n".join(includes), definitions="\n".join(text for _, text in shard)
        )
    for path, text in texts.items():
        write_if_changed(out / path, text)
    return [out / path for path in texts]


def _call_of(function: NativeFunction) -> str:
    """The C++ function of an operator that takes what torchgen converts a shim's arguments to."""
    if Variant.function in function.variants or function.func.has_symint():
        return gen_static_dispatch_backend_call(function)
    return f"at::_ops::{function.func.name.unambiguous_name()}::call"


def _below_autograd(definition: str) -> str:
    return definition.replace(_TRY, _TRY + "\n\t\tconst at::AutoDispatchBelowADInplaceOrView below_autograd;")
