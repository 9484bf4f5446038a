"""What a torch dtype is in the text of a kernel: in memory, in registers, as a literal."""

from __future__ import annotations

import math
import struct

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable

# In registers: computed in what eager kernels compute in.
REGISTER = {
    torch.bool: "bool",
    torch.int8: "int",
    torch.uint8: "int",
    torch.int16: "int",
    torch.uint16: "int",
    torch.int32: "int",
    torch.uint32: "uint",
    torch.int64: "int64_t",
    torch.uint64: "uint64_t",
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.float32: "float",
    torch.float64: "float",  # numbers of Python; mps has no tensors of it
}
# In memory: types of shaders/lib/inductor_memory.slang.
STORAGE = {
    torch.bool: "Bool",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.int16: "int16_t",
    torch.uint16: "uint16_t",
    torch.int32: "int",
    torch.uint32: "uint",
    torch.int64: "int64_t",
    torch.uint64: "uint64_t",
    torch.float16: "half",
    torch.bfloat16: "BF16",
    torch.float32: "float",
}
# The codes of lib/dtype.slang, for functions that depend on the precision of a result.
CODE = {torch.float16: "kF16", torch.bfloat16: "kBF16", torch.float32: "kF32", torch.float64: "kF32"}
NARROW = {torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.uint16: "u16"}
# What brings values of two register types to one, from the narrowest to the widest.
_ORDER = ("bool", "int", "uint", "int64_t", "uint64_t", "float")


def register_type(value) -> str | None:
    """The register type of an operand: a variable, or a number of Python; None where it has not one of its own."""
    if isinstance(value, CSEVariable):
        return REGISTER[value.dtype] if value.dtype is not None else None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**31) <= value < 2**31 else "int64_t"
    return "float" if isinstance(value, float) else None


def common_type(*operands) -> str:
    """The widest register type of the operands."""
    kinds = [register_type(v) for v in operands]
    return _ORDER[max((_ORDER.index(k) for k in kinds if k is not None), default=_ORDER.index("float"))]


def operand(value, kind: str | None = None) -> str:
    """The text of an operand, brought to a register type."""
    if isinstance(value, (bool, int, float)):
        return number(value, kind or register_type(value))
    have = register_type(value)
    if kind is None or have == kind or have is None:
        return str(value)
    if kind == "bool":
        return f"to_bool({value})" if have == "float" else f"({value} != 0)"
    return f"{kind}({value})"


def number(value, kind: str) -> str:
    """A literal of a register type."""
    if kind == "float":
        value = float(value)
        if math.isfinite(value) and abs(value) < 3.4028235677973366e38:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            if value != 0.0 and abs(value) < 1.1754943508222875e-38:
                return f"asfloat(0x{bits:08x}u)"
            text = repr(value)
            return f"({text}f)" if text.startswith("-") else f"{text}f"
        if math.isnan(value):
            return "m::kNaN"
        return "m::kInfinity" if value > 0 else "(-m::kInfinity)"
    if kind == "bool":
        return "true" if value else "false"
    value = int(value)
    if kind == "int64_t":
        value = (value + 2**63) % 2**64 - 2**63
        return "int64_t(0x8000000000000000ull)" if value == -(2**63) else f"int64_t({value}ll)"
    if kind == "uint64_t":
        return f"uint64_t({value % 2**64}ull)"
    if kind == "uint":
        return f"{value % 2**32}u"
    value = (value + 2**31) % 2**32 - 2**31
    return "int(0x80000000u)" if value == -(2**31) else f"({value})" if value < 0 else str(value)


def converted(value, src: torch.dtype | None, dst: torch.dtype) -> str:
    """The text of a value as another dtype: as a store and a load would give it, but for the rounding of floats."""
    kind = REGISTER[dst]
    have = register_type(value) if src is None else REGISTER[src]
    if isinstance(value, (bool, int, float)):
        return number(value, kind)
    if kind == "bool":
        return operand(value, "bool")
    if have == "float" and kind != "float":
        return integer_of(str(value), dst)
    text = str(value) if have == kind else f"{kind}({value})"
    source = value.dtype if src is None and isinstance(value, CSEVariable) else src
    return text if source in (dst, torch.bool) else wrapped(text, dst)


def integer_of(text: str, dtype: torch.dtype) -> str:
    """A float as a number of an integer dtype, truncated as eager conversions do: narrow ones by way of 32 bits."""
    functions = {"int": "to_int", "uint": "to_uint", "int64_t": "to_int64", "uint64_t": "to_uint64"}
    return wrapped(f"{functions[REGISTER[dtype]]}({text})", dtype)


def wrapped(text: str, dtype: torch.dtype | None) -> str:
    """The result of integer arithmetic as a number of its dtype."""
    return f"wrap_{NARROW[dtype]}({text})" if dtype in NARROW else text


def is_fraction(expr: sympy.Expr | int | float) -> bool:
    """Whether a number that a kernel is given is a float, of a symbol (the value of Tensor.item()), say."""
    return not (isinstance(expr, int) or getattr(expr, "is_integer", False))
