"""torch.mps.compile_shader: kernels in Slang, or in a subset of Metal's language, as functions of tensors.

docs/user_kernels.md tells how to write them.
"""

from __future__ import annotations

import functools
import json
import re

import torch

from torch_anymps.compiler import compiler_version

from .kernel import MetalKernel, SlangKernel

METAL_LANES = 32  # threads of a simdgroup

_SLANG = re.compile(
    r'\[\s*shader\s*\(\s*"compute"\s*\)\s*\]|\bSV_(?:DispatchThreadID|Group)|^\s*import\s+\w', re.MULTILINE
)
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class ShaderLibrary:
    """The kernels of a source, each an attribute that can be called; dir() lists them."""

    def __init__(self, kernels: dict) -> None:
        self._kernels = kernels

    def __dir__(self) -> list[str]:
        return list(self._kernels)

    def __getattr__(self, name: str):
        kernels = self.__dict__.get("_kernels", {})
        if name not in kernels:
            raise NoKernelError(f"Failed to create function state object for: {name}; there are {sorted(kernels)}")
        return kernels[name]


class NoKernelError(RuntimeError, AttributeError):
    """A library has no kernel of a name: RuntimeError on a Mac, and what hasattr() expects."""


def compile_shader(source: str) -> ShaderLibrary:
    """Compiles kernels and returns their library.

    Slang where the source has an entry point of it (`[shader("compute")]`), else Metal, of which a subset is
    understood. Raises SyntaxError with the compiler's message or with the construct that the subset lacks,
    RuntimeError where the compiler is not installed.
    """
    compiler_version("torch.mps.compile_shader")
    if not isinstance(source, str):
        raise TypeError(f"compile_shader(): argument 'source' must be str, not {type(source).__name__}")
    return _library(source)


@functools.lru_cache(maxsize=512)
def _library(source: str) -> ShaderLibrary:
    if is_slang(source):
        return ShaderLibrary({name: SlangKernel(name, handle) for name, handle in compile_kernels(source, 0)})
    from .metal import translate

    native = has_simdgroups()
    translation = translate(source, native)
    handles = dict(compile_kernels(translation.source, METAL_LANES if native else 0))
    messages = translation.messages
    return ShaderLibrary(
        {text.name: MetalKernel(text, messages, handles[text.slang_name]) for text in translation.kernels}
    )


@functools.cache
def has_simdgroups() -> bool:
    """Whether the device has subgroups as Metal's kernels expect them."""
    info = json.loads(torch.ops.anymps.device_info())
    return info["min_subgroup_size"] <= METAL_LANES <= info["max_subgroup_size"]


def is_slang(source: str) -> bool:
    """Whether a source is Slang, and not Metal."""
    return _SLANG.search(_COMMENTS.sub("", source)) is not None


def compile_kernels(source: str, lanes: int) -> list[tuple[str, int]]:
    """Names and handles of a Slang source's entry points; lanes: the subgroup size that it counts on, or 0."""
    try:
        return list(zip(*torch.ops.anymps.compile_library(source, lanes), strict=True))
    except RuntimeError as error:
        raise SyntaxError(str(error)) from None


def compile_spirv(source: str) -> dict[str, bytes]:
    """See torch_anymps.compile_spirv."""
    compiler_version("torch_anymps.compile_spirv")
    kernels = compile_kernels(source, 0)
    return {name: torch.ops.anymps.kernel_words(handle).numpy().tobytes() for name, handle in kernels}
