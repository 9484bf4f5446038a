"""Decides whether the backend takes part in this process, and loads it. The reason lives in `status`."""

from __future__ import annotations

import atexit
import os
import pathlib
import sys
import warnings
from dataclasses import dataclass

TORCH_VERSION = "2.13"
TORCHVISION_VERSION = "0.28"  # the one that goes with it
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
LIBRARY = "libtorch_anymps.so"


@dataclass
class Status:
    """Whether the core library is in force; if not, why (one sentence) and what to do (one sentence)."""

    tried: bool = False
    loaded: bool = False
    reason: str = ""
    advice: str = ""


status = Status()


class _StayOut(Exception):
    """Carries the reason and the advice."""


def load() -> None:
    """Loads the backend once. Never raises, never prints; what went wrong is in `status`."""
    if status.tried:
        return
    status.tried = True
    try:
        _load()
    except _StayOut as stay_out:
        status.reason, status.advice = stay_out.args
    except Exception as error:  # import torch must not fail because of us
        status.reason = f"Loading failed with {type(error).__name__}: {error}."
        status.advice = "Please report this sentence as a bug of torch-anymps."


def load_explicitly() -> None:
    """For `import torch_anymps`: loads where `import torch` did not, and warns when that is too late."""
    importing_torch = getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)
    if importing_torch:
        return  # torch calls _autoload itself at the end of its import
    import torch  # noqa: F401

    if status.tried:
        return
    load()
    if status.reason.startswith(_TOO_LATE):
        warnings.warn(f"{status.reason} {status.advice}", stacklevel=3)


_TOO_LATE = "torch_anymps was imported too late"


def _load() -> None:
    import torch

    _check_environment()
    _check_torch(torch)
    library = _find_library()
    _remove_stand_ins()
    torch.ops.load_library(library)
    if not _hooks_are_ours(torch):
        raise _StayOut(
            f"{_TOO_LATE}: PyTorch had already decided in this process that there is no mps device.",
            "Import torch_anymps right after torch, or leave TORCH_DEVICE_BACKEND_AUTOLOAD unset.",
        )
    if torch.version.cuda is not None and not torch.ops.anymps.neutralise_cuda_hooks():
        raise _StayOut(
            "This CUDA build of PyTorch keeps its CUDA hooks in a form that torch-anymps does not know.",
            f"Install the CPU build of PyTorch: pip install torch --index-url {CPU_BUILDS}.",
        )
    # Ends autograd's device thread while the interpreter is whole: a thread that drops its last Python objects later
    # is killed inside a destructor, which aborts the process.
    atexit.register(torch.ops.anymps.drain)
    status.loaded = True
    from torch_anymps import log, patches

    patches.install()
    log.install()


def _remove_stand_ins() -> None:
    """Takes back the kernels that PyTorch registers for mps from Python: to replace one prints a warning."""
    linear_algebra = sys.modules.get("torch._refs.linalg")
    library = getattr(linear_algebra, "mps_lib", None)
    if library is not None:
        library._destroy()


def _hooks_are_ours(torch) -> bool:
    """False when PyTorch, which keeps its first answer for the life of the process, was asked for mps before us."""
    try:
        return torch._C._mps_is_on_macos_or_newer(13, 0)  # asks the hooks and no driver
    except RuntimeError:  # what PyTorch's stand-in answers
        return False


def package_file(name: str) -> pathlib.Path | None:
    """A built file of the package: beside this file, or, in a checkout, in the package that is installed behind it."""
    package = pathlib.Path(__file__).parent
    for folder in [package, *(pathlib.Path(entry, package.name) for entry in sys.path)]:
        if (folder / name).exists():
            return folder / name
    return None


def _find_library() -> str:
    """Path of the core library."""
    library = package_file(LIBRARY)
    if library is None:
        package = pathlib.Path(__file__).parent
        raise _StayOut(f"The library {LIBRARY} is missing in {package}.", "Build or reinstall torch-anymps.")
    return str(library)


def _check_environment() -> None:
    if os.environ.get("ANYMPS_DISABLE", "0") not in ("", "0"):
        raise _StayOut("ANYMPS_DISABLE is set in the environment.", "Unset ANYMPS_DISABLE.")


def _check_torch(torch) -> None:
    version = str(torch.__version__)
    if not version.startswith(TORCH_VERSION + "."):
        raise _StayOut(
            f"PyTorch {version} is installed, and this build of torch-anymps needs {TORCH_VERSION}.*: the library was "
            f"built for {TORCH_VERSION}, and another package may have changed torch since.",
            f"pip install 'torch=={TORCH_VERSION}.*' 'torchvision=={TORCHVISION_VERSION}.*' --index-url {CPU_BUILDS} "
            "(without torchvision if you do not use it), or the torch-anymps made for your PyTorch.",
        )
    if torch.version.hip is not None or torch.version.xpu is not None:
        raise _StayOut(
            "This is a ROCm or XPU build of PyTorch, which has a GPU device of its own.",
            "Install the CPU build of PyTorch to use mps.",
        )
    if torch.backends.mps.is_built():
        raise _StayOut("This build of PyTorch has Apple's own mps device.", "Uninstall torch-anymps.")
    if torch.version.cuda is not None and torch.cuda.device_count() > 0:
        raise _StayOut(
            "This is a CUDA build of PyTorch and an NVIDIA GPU is present, so the device to use is cuda.",
            "To use mps on this machine, install the CPU build of PyTorch or set CUDA_VISIBLE_DEVICES='' "
            "before Python starts.",
        )
