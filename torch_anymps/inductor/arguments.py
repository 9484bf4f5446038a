"""Arguments of a generated kernel in Slang."""

from __future__ import annotations

import sympy
from torch._inductor.codegen.common import IndentedBuffer

from .dtypes import STORAGE

PUSH_CONSTANT_BYTES = 128


def declare_arguments(code: IndentedBuffer, kernel, trees: list, index: str, tiled: bool) -> None:
    """The head of a kernel: its argument struct, and a variable for each of the arguments.

    index: the type of indices. Structs beyond PUSH_CONSTANT_BYTES are passed by their address.
    """
    fields = [(f"{STORAGE[t.dtype]}*", t.name) for t in kernel.tensors]
    for name, kind, _ in kernel.numbers:
        fields.append(("float" if kind == "float" else "int64_t", name))
        if kind == "float":
            fields.append(("float", f"{name}_unused"))
    fields += [("int64_t", f"{t.prefix}numel") for t in trees]
    if tiled:
        fields.append(("int64_t", "tile_count"))
    for n in range(len(kernel.messages)):
        fields += [("int64_t", f"error{n}"), ("int64_t", f"error_code{n}")]
    code.writeline("struct Args")
    code.writeline("{")
    with code.indent():
        for kind, name in fields:
            code.writeline(f"{kind} {name};")
    code.writeline("}")
    words = len(kernel.tensors) + len(kernel.numbers) + len(trees) + tiled + 2 * len(kernel.messages)
    by_address = 8 * words > PUSH_CONSTANT_BYTES
    code.writeline('[shader("compute")] [numthreads(kWorkgroup, 1, 1)]')
    code.writeline(f"void main_kernel(uniform Args{'*' if by_address else ''} args)")
    code.writeline("{")
    access = "->" if by_address else "."
    with code.indent():
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
