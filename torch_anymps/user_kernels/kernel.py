"""A compiled kernel as something to call: arguments to bytes, threads to workgroups, one launch."""

from __future__ import annotations

import functools
import json

import torch

from torch_anymps import compiler

from . import arguments

_MAX_DEPTH = 64  # csrc/kernels/user_kernel.cpp: kMaxDepth
_BY_WORKGROUPS, _BY_THREADS, _BY_EXACT_THREADS = range(3)  # modes of launch_user_kernel


@functools.cache
def _launch_function() -> int:
    return torch.ops.anymps.launch_user_kernel_function()


def launch(handle: int, packed: bytearray, tensors: list, places: list, extent, group_size, mode: int) -> None:
    """Records a launch: the address of tensors[i] goes to places[i], or to ~places[i] where it is only read, or nowhere
    for None."""
    compiler.launcher().launch_user_kernel(
        handle, _launch_function(), packed, tuple(tensors), tuple(places), extent, group_size, mode
    )


class Kernel:
    """What kernels of both languages share. Called with the arguments, see __call__."""

    thread_execution_width: int

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self.handle = handle
        self._interface = json.loads(torch.ops.anymps.kernel_interface(handle))

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {type(self).__name__}>"

    @property
    def max_threads_per_threadgroup(self) -> int:
        """Threads that a workgroup may have on this device."""
        return self._interface["max_threads"]

    @property
    def static_thread_group_memory_length(self) -> int:
        """Bytes of shared memory of a workgroup."""
        return self._interface["shared_bytes"]

    def __call__(self, *args, threads=None, group_size=None, arg_casts=None, error_buf_idx=None) -> None:
        """Runs the kernel in the current stream.

        args: tensors on mps, numbers, lists of either; shapes and strides are not passed. threads: one to three
        counts of threads, by default the elements of the first tensor. group_size: threads of a workgroup, in as many
        dimensions. arg_casts, of Metal's kernels: "fp16", "bf16", "int32", "int16", "int8" or "uint8", for all
        numbers or as a dict by index. error_buf_idx, of Metal's kernels: where the buffer for errors stands. Raises
        RuntimeError for a wrong dtype or device, TypeError for a wrong count or kind, ValueError for a workgroup
        beyond the device's limit.
        """
        if error_buf_idx is not None:
            args = (*args[:error_buf_idx], self._errors(), *args[error_buf_idx:])
        casts = arguments.casts_of(arg_casts)
        if threads is None:
            first = next((arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() + arg.is_mps > 0), None)
            if first is None:
                raise RuntimeError("Number of threads is undefined or has wrong dimension")
            threads = first.numel()
        threads = arguments.extent("threads", threads)
        if group_size is not None:
            group_size = arguments.extent("group_size", group_size)
            if len(group_size) != len(threads):
                raise RuntimeError(
                    f"group_size {group_size} and threads {threads} must have the same number of dimensions"
                )
        self._launch(args, casts, _padded(threads), group_size and _padded(group_size))

    def _launch(self, args: tuple, casts, threads: tuple, group_size: tuple | None) -> None:
        raise NotImplementedError

    def _errors(self) -> list[int]:
        """What stands for the buffer that the kernel reports errors in."""
        raise NotImplementedError("error_buf_idx is an argument of kernels in Metal only")

    def _check_count(self, args: tuple, expected: int) -> None:
        if len(args) != expected:
            raise TypeError(f"{self.name}() takes {expected} arguments but {len(args)} were given")


class SlangKernel(Kernel):
    """An entry point in Slang: its uniform parameters are the arguments, with the types that it says."""

    def __init__(self, name: str, handle: int) -> None:
        super().__init__(name, handle)
        written = self._interface["written"]
        self._parameters = [
            _Parameter(row, i > 63 or bool(written >> i & 1)) for i, row in enumerate(self._interface["parameters"])
        ]
        self._where = _words(name, self._parameters)
        self._bytes = max([p.offset + p.bytes for p in self._parameters], default=0)

    @property
    def thread_execution_width(self) -> int:
        """Threads of a subgroup."""
        return self._interface["subgroup_size"]

    def _launch(self, args, casts, threads, group_size) -> None:
        self._check_count(args, len(self._parameters))
        group_size = group_size or tuple(self._interface["group_size"])
        packed = bytearray(self._bytes)
        tensors, places = [], []
        for index, (parameter, arg) in enumerate(zip(self._parameters, args, strict=True)):
            where = self._where[index]
            if parameter.is_address:
                memory, *others = parameter.tensors(where, arg)
                tensors += [memory, *others]
                places.append(parameter.offset if parameter.is_written else ~parameter.offset)
                places += [None] * len(others)
            else:
                packed[parameter.offset : parameter.offset + parameter.bytes] = parameter.numbers(where, arg)
        groups = tuple(-(-n // size) if size else 0 for n, size in zip(threads, group_size, strict=True))
        launch(self.handle, packed, tensors, places, groups, group_size, _BY_WORKGROUPS)


class _Parameter:
    """A uniform parameter: an address, or numbers of one type."""

    def __init__(self, row: dict, is_written: bool) -> None:
        self.is_written = is_written
        self.offset, self.bytes, self.is_address = row["offset"], row["bytes"], row["is_address"]
        names = {"float": "fp", "bfloat": "bf"}
        kind = f"{names.get(row['kind'], row['kind'])}{row['bits']}"
        self._kind = kind if kind in arguments.DTYPES else None  # None: a struct, of bytes or a pointer to them

    def tensors(self, where: str, arg) -> list[torch.Tensor]:
        """The tensor on mps whose address is passed, and those whose addresses are in it; numbers become a tensor."""
        if isinstance(arg, torch.Tensor):
            self._check_dtype(where, arg)
            return [arg]
        values = arguments.numbers_of(where, arg)
        if values is not None:
            packed = arguments.pack(where, values, self._kind or arguments.natural_kind(values, None))
            return [torch.frombuffer(bytearray(packed), dtype=torch.uint8).to("mps")]
        if not all(isinstance(t, torch.Tensor) and t.device.type == "mps" for t in arg):
            raise RuntimeError(f"{where} must be tensors on mps")
        return [torch.tensor([t.data_ptr() for t in arg], dtype=torch.int64).to("mps"), *arg]

    def _check_dtype(self, where: str, tensor: torch.Tensor) -> None:
        expected = arguments.DTYPES.get(self._kind)
        found = tensor.dtype
        if expected is None or found == expected or tensor.device.type != "mps":
            return
        unsigned = str(found).replace("torch.int", "torch.uint") == str(expected)
        signed = str(found).replace("torch.uint", "torch.int") == str(expected)
        same = found == torch.complex64 and expected == torch.float32
        same |= found == torch.bool and expected in (torch.uint8, torch.int8)
        if not (same or unsigned or signed):
            words = [arguments.WORDS.get(dtype, str(dtype)) for dtype in (expected, found)]
            raise RuntimeError(f"{where}: expected scalar type {words[0]} but found {words[1]}")

    def numbers(self, where: str, arg) -> bytes:
        """The bytes of a parameter that is no address."""
        if isinstance(arg, torch.Tensor) and arg.device.type != "cpu":
            raise TypeError(f"{where} must be a number, not a tensor on {arg.device.type}")
        if self._kind is None:
            if isinstance(arg, (bytes, bytearray)) and len(arg) == self.bytes:
                return arg
            raise TypeError(f"{where} must be bytes of length {self.bytes}, those of a struct")
        values = arguments.numbers_of(where, arg)
        packed = arguments.pack(where, values or [], self._kind)
        if len(packed) != self.bytes:
            size = len(packed) // max(len(values or []), 1) or 1
            raise TypeError(f"{where} must be {self.bytes // size} numbers, not {len(values or [])}")
        return packed


def _words(name: str, parameters: list) -> list[str]:
    """What errors call the arguments."""
    return [f"{name}(): argument {index}" for index in range(len(parameters))]


def _padded(counts: tuple[int, ...]) -> tuple[int, ...]:
    return (*counts, 1, 1)[:3]


class MetalKernel(Kernel):
    """A kernel of Metal source: every argument is a buffer, in memory or of numbers, as on a Mac."""

    thread_execution_width = 32

    _HEADER, _ALIGN, _MAX_BYTES = 48, 16, 65536 - 16  # shaders/lib/metal.slang

    def __init__(self, text, messages: list[str], handle: int) -> None:
        super().__init__(text.name, handle)
        self._messages = messages
        self._buffers = text.buffers
        self._where = _words(text.name, text.buffers)
        self._is_exact = text.is_exact

    def _launch(self, args, casts, threads, group_size) -> None:
        self._check_count(args, len(self._buffers))
        group_size = group_size or self._default_group(threads)
        packed = bytearray(self._HEADER + 8 * len(args))
        tensors, places = [], []
        for index, (buffer, arg) in enumerate(zip(self._buffers, args, strict=True)):
            where, place = self._where[index], self._HEADER + 8 * index
            values = arguments.numbers_of(where, arg)
            if values is not None:
                self._append(packed, place, self._numbers(where, buffer, values, arguments.cast_for(casts, index)))
            elif isinstance(arg, torch.Tensor):
                tensors.append(arg)
                places.append(~place if buffer.is_read_only else place)
            else:
                at = self._append(packed, place, bytes(8 * len(arg)))
                tensors += arg
                places += range(at, at + 8 * len(arg), 8)
        mode = _BY_EXACT_THREADS if self._is_exact else _BY_THREADS
        launch(self.handle, packed, tensors, places, threads, group_size, mode)

    def _errors(self) -> list[int]:
        slots = [torch.ops.anymps.message_slot(message) for message in self._messages or ["an error"]]
        return [number for slot in slots for number in slot]

    def _append(self, packed: bytearray, place: int, data: bytes) -> int:
        """Puts numbers behind the arguments, and where they are into `place`."""
        at = -(-len(packed) // self._ALIGN) * self._ALIGN
        if at + len(data) > self._MAX_BYTES:
            raise RuntimeError(f"{self.name}(): numbers among the arguments take more than 64 KiB: pass a tensor")
        packed.extend(bytes(at - len(packed)) + data)
        packed[place : place + 8] = at.to_bytes(8, "little")
        return at

    @staticmethod
    def _numbers(where: str, buffer, values: list, cast: str | None) -> bytes:
        kind = cast or buffer.kind or arguments.natural_kind(values, None)
        if buffer.count > len(values):
            raise TypeError(f"{where} must be {buffer.count} numbers, not {len(values)}")
        return arguments.pack(where, values, kind)

    def _default_group(self, threads: tuple) -> tuple:
        """As on a Mac where it can be told; else what devices like."""
        most = self.max_threads_per_threadgroup if self._is_exact else min(256, self.max_threads_per_threadgroup)
        x = max(1, min(most, threads[0]))
        y = max(1, min(most // x, threads[1]))
        return x, y, max(1, min(most // (x * y), threads[2], _MAX_DEPTH))
