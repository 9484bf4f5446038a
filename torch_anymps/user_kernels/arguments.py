"""Python's numbers as the bytes that kernels read."""

from __future__ import annotations

import struct

import torch

# By the names of arg_casts, and those of torch_anymps/user_kernels/metal/vocabulary.py.
FORMATS = {
    "fp16": "e",
    "fp32": "f",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint64": "Q",
    "uint32": "I",
    "uint16": "H",
    "uint8": "B",
}
CASTS = ("fp16", "bf16", "int32", "int16", "int8", "uint8")  # PyTorch's
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint64": torch.uint64,
    "uint32": torch.uint32,
    "uint16": torch.uint16,
    "uint8": torch.uint8,
}
WORDS = {
    torch.bfloat16: "BFloat16",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
}


def pack(where: str, values: list, kind: str) -> bytes:
    """Numbers one behind the other. Integers wrap, as C's do; a float is refused where an integer is expected."""
    if kind[:2] in ("fp", "bf"):
        return _pack_floats([float(value) for value in values], kind)
    code = FORMATS[kind]
    size = struct.calcsize(code)
    packed = b""
    for value in values:
        if isinstance(value, float):
            raise TypeError(f"{where} must be int, not float")
        packed += (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return packed


def _pack_floats(values: list[float], kind: str) -> bytes:
    if kind != "bf16":
        try:
            return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)
        except OverflowError:
            pass  # infinity, as torch converts it
    converted = torch.tensor(values, dtype=DTYPES[kind])
    return converted.view(torch.uint8).numpy().tobytes()


def numbers_of(where: str, value) -> list | None:
    """The numbers of an argument that is one, a list of some or a tensor on the CPU without dimensions; else None."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.dim() == 0 and not value.dtype.is_complex:
            return [value.item()]
        return None
    if isinstance(value, (bool, int, float)):
        return [value]
    if isinstance(value, (list, tuple)):
        if not value:
            raise RuntimeError(f"{where}: an empty list cannot be an argument of a kernel")
        if isinstance(value[0], torch.Tensor):
            return None
        if all(isinstance(v, (bool, int, float)) for v in value):
            return list(value)
    raise RuntimeError(f"{where}: unsupported argument type {type(value).__name__}")


def natural_kind(values: list, cast: str | None) -> str:
    """How PyTorch passes numbers on a Mac: as float32 or int64, by the first of them, unless told otherwise."""
    return cast or ("fp32" if isinstance(values[0], float) else "int64")


def casts_of(arg_casts) -> dict | str | None:
    """arg_casts, checked: None, one cast for all numbers, or a dict of casts by argument."""
    named = arg_casts.values() if isinstance(arg_casts, dict) else [arg_casts]
    if arg_casts is not None and not isinstance(arg_casts, (dict, str)):
        raise RuntimeError(f"Unexpected caster arg type {type(arg_casts).__name__}")
    for cast in named:
        if cast is not None and cast not in CASTS:
            raise RuntimeError(f"Unsupported cast instruction {cast}")
    return arg_casts


def cast_for(casts, index: int) -> str | None:
    """The cast of argument `index`."""
    return casts.get(index) if isinstance(casts, dict) else casts


def extent(name: str, value) -> tuple[int, ...]:
    """threads or group_size: one to three counts."""
    counts = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(counts) <= 3:
        raise RuntimeError(f"Number of {name} is undefined or has wrong dimension")
    if any(not isinstance(n, int) for n in counts):
        raise TypeError(f"{name} must be int or a tuple of ints, not {value!r}")
    if any(not 0 <= n < 1 << 32 for n in counts):
        raise ValueError(f"{name} must be counts below 2**32, not {value!r}")
    return counts
