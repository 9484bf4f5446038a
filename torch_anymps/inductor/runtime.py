"""Kernels at run time: Slang text to something that can be called. Generated modules import kernel() from here."""

from __future__ import annotations

import functools

import torch

from torch_anymps.compiler import compiler_library, compiler_version, launcher

from .device import device_config

__all__ = ["compiler_library", "compiler_version", "kernel", "launcher", "prepare", "start"]


@functools.cache
def prepare() -> None:
    """Begins to open the compiler in another thread, for a graph that no cache has."""
    compiler_version()
    torch.ops.anymps.prepare_slang("import lib.inductor;")


def start(source: str) -> None:
    """Begins to compile a kernel in another thread."""
    compiler_version()
    torch.ops.anymps.compile_slang_later(source)


@functools.cache
def _launch_function() -> int:
    return torch.ops.anymps.launch_function()


def kernel(name: str, config: tuple, messages: tuple[str, ...], source: str):
    """The callable of a kernel: tensors first, then integers.

    config: see SlangKernel.launch_config. messages: of the errors that the kernel may report.
    """
    compiler_version()
    device = device_config()
    source = source.strip("\n")
    # Through PyTorch's Python dispatcher, which is on while it compiles, the call would hold the GIL.
    with torch._C._DisablePythonDispatcher():
        handle = torch.ops.anymps.create_kernel(name, source, [device.workgroup, device.subgroup])
    tensors, written, integers, grid, rows = config
    slots = [number for message in messages for number in torch.ops.anymps.message_slot(message)]
    launch = launcher().make(handle, _launch_function(), tensors, written, integers + len(slots), grid, rows)
    return functools.partial(_with_slots, launch, slots) if slots else launch


def _with_slots(launch, slots, *args):
    launch(*args, *slots)
