"""Arguments of a generated kernel in Slang."""

from __future__ import annotations

import itertools

import sympy
from torch._inductor.codegen.common import IndentedBuffer

from .dtypes import STORAGE

PUSH_CONSTANT_BYTES = 128

Fields = list[tuple[str, str]]  # (type, name)


def fields_of(kernel, trees: list, tiled: bool) -> tuple[Fields, Fields, Fields]:
    """Tensors, numbers, and where errors are reported, in the order in which a launch has them."""
    tensors = [(f"{STORAGE[t.dtype]}*", t.name) for t in kernel.tensors]
    numbers = []
    for name, kind, _ in kernel.numbers:
        numbers.append(("float" if kind == "float" else "int64_t", name))
        if kind == "float":
            numbers.append(("float", f"{name}_unused"))
    numbers += [("int64_t", f"{t.prefix}numel") for t in trees]
    if tiled:
        numbers.append(("int64_t", "tile_count"))
    if kernel.partial_sums is not None:
        numbers.append(("int64_t", "group_count"))
    errors = [("int64_t", f"{kind}{n}") for n in range(len(kernel.messages)) for kind in ("error", "error_code")]
    return tensors, numbers, errors


def declare_struct(code: IndentedBuffer, name: str, fields: Fields) -> None:
    code.writeline(f"struct {name}")
    code.writeline("{")
    with code.indent():
        for kind, field in fields:
            code.writeline(f"{kind} {field};")
    code.writeline("}")


def declare_entry(code: IndentedBuffer, fields: Fields) -> str:
    """The head of an entry point whose arguments are these fields, and how its body gets at one.

    Structs beyond PUSH_CONSTANT_BYTES are passed by their address.
    """
    declare_struct(code, "Args", fields)
    halves = sum(1 if kind == "float" else 2 for kind, _ in fields)
    by_address = 4 * halves > PUSH_CONSTANT_BYTES
    code.writeline('[shader("compute")] [numthreads(kWorkgroup, 1, 1)]')
    code.writeline(f"void main_kernel(uniform Args{'*' if by_address else ''} args)")
    code.writeline("{")
    return "->" if by_address else "."


def declare_arguments(code: IndentedBuffer, kernel, trees: list, index: str, tiled: bool, part: int | None) -> None:
    """The head of a kernel, or of a part of one: its argument struct, and a variable for each of the arguments.

    index: the type of indices.
    """
    fields = list(itertools.chain(*fields_of(kernel, trees, tiled)))
    if part is None:
        access = declare_entry(code, fields)
    else:
        declare_struct(code, f"Args{part}", fields)
        code.writeline(f"void part{part}(Args{part} args, uint group)")
        code.writeline("{")
        access = "."
    with code.indent():
        if part is None:
            code.writeline("let group = group_index();")
        for tensor in kernel.tensors:
            code.writeline(f"let {tensor.name} = args{access}{tensor.name};")
        for name, kind, _ in kernel.numbers:
            text = f"args{access}{name}"
            code.writeline(f"let {name} = {f'({text} != 0)' if kind == 'bool' else f'{kind}({text})'};")
            if kind == index:
                code.writeline(f"let {name}_wide = {text};")
        for n in range(len(kernel.messages)):
            code.writeline(f"let error{n} = args{access}error{n};")
            code.writeline(f"let error_code{n} = args{access}error_code{n};")
        for tree in trees:
            known = tree.numel if isinstance(tree.numel, sympy.Integer) else f"args{access}{tree.prefix}numel"
            code.writeline(f"let {tree.prefix}numel = {index}({known});")
        if kernel.partial_sums is not None:
            code.writeline(f"let group_count = {index}(args{access}group_count);")
