"""Decides whether the backend takes part in this process, and loads it. The reason lives in `status`."""

from __future__ import annotations

import atexit
import os
import pathlib
import re
import sys
import warnings
from dataclasses import dataclass

CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
# Compiled files, one a minor version of PyTorch: with another one's they would misbehave without a word.
LIBRARY = "libtorch_anymps_{}.so"
LAUNCHER = "_launcher_{}.abi3.so"


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


def operators():
    """torch.ops.anymps. Raises RuntimeError, with the reason and what to do, where the core library is not in force."""
    import torch

    if not status.loaded:
        raise RuntimeError(f"There is no mps device: {status.reason} {status.advice}")
    return torch.ops.anymps


_TOO_LATE = "torch_anymps was imported too late"


def _load() -> None:
    import torch

    _check_environment()
    _check_torch(torch)
    library = _find_library(torch)
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
    from torch_anymps import patches

    patches.install()
    if os.environ.get("ANYMPS_LOG"):
        from torch_anymps import log

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


def _package_folders() -> list[pathlib.Path]:
    """Beside this file, or, in a checkout, the package that is installed behind it."""
    package = pathlib.Path(__file__).parent
    return [package, *(pathlib.Path(entry, package.name) for entry in sys.path)]


def package_file(name: str) -> pathlib.Path | None:
    """A built file of the package; None where it is missing."""
    return next((folder / name for folder in _package_folders() if (folder / name).exists()), None)


def file_for(pattern: str, torch_version: str) -> str:
    """The name of a compiled file (LIBRARY, LAUNCHER) for a version of PyTorch: "2.13.0+cpu" puts 2_13 in."""
    return pattern.format("_".join(torch_version.split(".")[:2]))


def built_for() -> list[str]:
    """The minor versions of PyTorch that this installation has a library for, the oldest first: ["2.13", "2.14"]."""
    names = [path.name for folder in _package_folders() for path in folder.glob(LIBRARY.format("*"))]
    found = {tuple(map(int, m.groups())) for m in map(re.compile(LIBRARY.format(r"(\d+)_(\d+)")).fullmatch, names) if m}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def _find_library(torch) -> str:
    """Path of the core library for the PyTorch that is running."""
    version = str(torch.__version__)
    library = package_file(file_for(LIBRARY, version))
    if library is not None:
        return str(library)
    built = built_for()
    if not built:
        package = pathlib.Path(__file__).parent
        raise _StayOut(f"The library {file_for(LIBRARY, version)} is missing in {package}.", _REINSTALL)
    nearest = min(built, key=lambda minor: abs(_minor_of(minor) - _minor_of(version)))
    raise _StayOut(
        f"PyTorch {version} is installed, and this torch-anymps was built for {' and '.join(built)}: another package "
        "may have changed torch since.",
        f"pip install 'torch=={nearest}.*' torchvision --index-url {CPU_BUILDS} (without torchvision if you do not use "
        "it), or a torch-anymps made for your PyTorch; one that is built from source serves the torch that is there.",
    )


_REINSTALL = "Build or reinstall torch-anymps."


def _minor_of(version: str) -> int:
    major, minor = map(int, version.split(".")[:2])
    return 1000 * major + minor


def _check_environment() -> None:
    if os.environ.get("ANYMPS_DISABLE", "0") not in ("", "0"):
        raise _StayOut("ANYMPS_DISABLE is set in the environment.", "Unset ANYMPS_DISABLE.")


def _check_torch(torch) -> None:
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
