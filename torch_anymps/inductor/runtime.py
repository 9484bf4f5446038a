"""Kernels at run time: Slang text to something that can be called. Generated modules import kernel() from here."""

from __future__ import annotations

import functools
import importlib.util
import pathlib

import torch

from torch_anymps._load import LAUNCHER, file_for, package_file

from .device import device_config

WITHOUT_COMPILER = (
    "torch.compile on mps needs the Slang compiler, which is not installed: pip install 'torch-anymps[compile]'."
)
PYTHON_ONLY = (
    "AOTInductor and torch._inductor.config.cpp_wrapper are not supported on mps: "
    "modules with its generated kernels are written in Python only."
)


@functools.cache
def compiler_library() -> pathlib.Path | None:
    """The file of libslang in the package slangpy, which is not imported; None where it is not installed."""
    spec = importlib.util.find_spec("slangpy")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    libraries = sorted(path for folder in folders for path in pathlib.Path(folder).glob("libslang-compiler.so*"))
    return libraries[-1] if libraries else None


@functools.cache
def compiler_version() -> str:
    """Opens the compiler at the first call. Raises RuntimeError with a sentence where it is not installed."""
    library = compiler_library()
    if library is None:
        raise RuntimeError(WITHOUT_COMPILER)
    shaders = package_file("shaders")
    if shaders is None:
        raise RuntimeError("The shader library of torch-anymps is missing: build or reinstall torch-anymps.")
    return torch.ops.anymps.open_slang(str(library), [str(shaders)])


def start(source: str) -> None:
    """Begins to compile a kernel in another thread."""
    compiler_version()
    torch.ops.anymps.compile_slang_later(source)


@functools.cache
def launcher():
    """The extension module that makes callables of kernels."""
    path = package_file(file_for(LAUNCHER, str(torch.__version__)))
    if path is None:
        raise RuntimeError("The module _launcher of torch-anymps is missing: build or reinstall torch-anymps.")
    spec = importlib.util.spec_from_file_location("torch_anymps._launcher", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    handle = torch.ops.anymps.create_kernel(name, source, [device.workgroup, device.subgroup])
    tensors, written, integers, grid, rows = config
    slots = [number for message in messages for number in torch.ops.anymps.message_slot(message)]
    launch = launcher().make(handle, _launch_function(), tensors, written, integers + len(slots), grid, rows)
    return functools.partial(_with_slots, launch, slots) if slots else launch


def _with_slots(launch, slots, *args):
    launch(*args, *slots)


def empty_strided(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """torch.empty_strided on mps, without the dispatcher."""
    return launcher().empty_strided(sizes, strides, dtype)
