"""The Slang compiler of the package slangpy, and the extension module that launches what it compiles."""

from __future__ import annotations

import functools
import importlib.util
import pathlib

import torch

from torch_anymps._load import LAUNCHER, file_for, operators, package_file

WITHOUT_COMPILER = "{} on mps needs the Slang compiler, which is not installed: pip install 'torch-anymps[compile]'."


@functools.cache
def compiler_library() -> pathlib.Path | None:
    """The file of libslang in the package slangpy, which is not imported; None where it is not installed."""
    spec = importlib.util.find_spec("slangpy")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    libraries = sorted(path for folder in folders for path in pathlib.Path(folder).glob("libslang-compiler.so*"))
    return libraries[-1] if libraries else None


@functools.cache
def compiler_version(what: str = "torch.compile") -> str:
    """Opens the compiler at the first call. Raises RuntimeError, with a sentence on `what`, if it is not installed."""
    library = compiler_library()
    if library is None:
        raise RuntimeError(WITHOUT_COMPILER.format(what))
    shaders = package_file("shaders")
    if shaders is None:
        raise RuntimeError("The shader library of torch-anymps is missing: build or reinstall torch-anymps.")
    return operators().open_slang(str(library), [str(shaders)])


@functools.cache
def launcher():
    """The extension module that makes callables of kernels. Raises RuntimeError where its file is missing."""
    path = package_file(file_for(LAUNCHER, str(torch.__version__)))
    if path is None:
        raise RuntimeError("The module _launcher of torch-anymps is missing: build or reinstall torch-anymps.")
    spec = importlib.util.spec_from_file_location("torch_anymps._launcher", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
