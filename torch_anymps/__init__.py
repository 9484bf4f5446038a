"""PyTorch's `mps` device on any GPU with a Vulkan driver.

Nothing needs to be imported: `import torch` finds this package through the entry point group `torch.backends`.
`python -m torch_anymps.info` says which device is used, or why there is none and what to do.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"
__all__ = [
    "compile_spirv",
    "device_count",
    "fallbacks",
    "host_ops",
    "include_paths",
    "memory",
    "numpy",
    "profile",
    "set_device",
]


def _autoload() -> None:
    """Called by torch at the end of `import torch`. Never raises and never prints."""
    from torch_anymps import _load

    _load.load()


def fallbacks() -> dict[str, int]:
    """Ops without a kernel that ran on the CPU instead in this process, with the number of calls.

    Empty unless PYTORCH_ENABLE_MPS_FALLBACK=1 was set, and where there is no device. Keys are names like
    "aten::kthvalue".
    """
    import torch

    from torch_anymps import _load

    if not _load.status.loaded:
        return {}
    return dict(zip(*torch.ops.anymps.fallback_counts(), strict=True))


def host_ops() -> list[str]:
    """Ops of the backend whose core is a LAPACK call on the CPU, by overload: "aten::linalg_qr", "aten::linalg_qr.out".

    They work on the device's memory where CPU and GPU share it, and need no PYTORCH_ENABLE_MPS_FALLBACK.
    """
    import torch

    from torch_anymps import _load

    return list(torch.ops.anymps.host_ops()) if _load.status.loaded else []


def device_count() -> int:
    """How many devices the processes of this machine can be spread over: the suitable ones of the best kind.

    A process uses one of them, and torch.mps.device_count() is 1 in it. 0 where this package stays out.
    """
    import torch

    from torch_anymps import _load

    return torch.ops.anymps.device_count() if _load.status.loaded else 0


def set_device(index: int) -> None:
    """Has this process use number `index` of device_count() devices; mps and mps:index then both mean it.

    For torch.multiprocessing.spawn, which tells a process its number by an argument alone; torchrun's LOCAL_RANK does
    it by itself. Raises RuntimeError for an index that is none, and after the first tensor on mps.
    """
    from torch_anymps import _load

    _load.operators().set_device(index)


def numpy(tensor):
    """A tensor on mps as a NumPy array of the same memory, without a copy, where host and device share memory.

    It has the tensor's shape, strides and dtype, and keeps the memory alive; what either side writes, the other sees.
    Waits for the device; call torch.mps.synchronize() before reading, in NumPy, what was written on mps since. Raises
    RuntimeError where the host cannot see the device's memory (tensor.numpy(force=True) copies), for a tensor of
    another device and for one that requires gradients; TypeError for what is no tensor, and for dtypes that NumPy
    lacks (bfloat16).
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"numpy(): argument 'tensor' must be Tensor, not {type(tensor).__name__}")
    if tensor.device.type != "mps":
        raise RuntimeError(f"numpy(): expected a tensor on mps, got one on {tensor.device}: tensor.numpy() serves it")
    storage = torch._C._mps_host_alias_storage(tensor.untyped_storage())
    alias = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.requires_grad:
        alias.requires_grad_()  # and NumPy's refusal is PyTorch's
    return alias.numpy()


def include_paths() -> list[str]:
    """Folders of the headers <anymps/kernel.h> and <anymps/torch.h>, by which C and C++ run kernels on mps."""
    import pathlib

    return [str(pathlib.Path(__file__).parent / "include")]


def compile_spirv(source: str) -> dict[str, bytes]:
    """The SPIR-V modules of a source's kernels in Slang, by name: what <anymps/kernel.h> takes.

    Bytes are words of 32 bits, little-endian, with one entry point, "main". Raises SyntaxError with the compiler's
    message, RuntimeError where the compiler is not installed.
    """
    from torch_anymps.user_kernels import compile_spirv

    return compile_spirv(source)


def profile():
    """A context that takes the GPU time of every kernel: `with torch_anymps.profile() as p: ...; print(p.table())`.

    See torch_anymps.profiler.Profile, also for its errors. Nothing is measured, and nothing costs time, outside of such
    a context.
    """
    from torch_anymps.profiler import Profile

    return Profile()


def __getattr__(name: str):
    """torch_anymps.memory without an import of its own, which few programs need."""
    if name == "memory":
        return importlib.import_module("torch_anymps.memory")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Importing torch runs _autoload() above. An explicit import of this package does the same where the entry point
# did not run (TORCH_DEVICE_BACKEND_AUTOLOAD=0), and warns where it comes too late.
import torch_anymps._load as _load  # noqa: E402

_load.load_explicitly()
