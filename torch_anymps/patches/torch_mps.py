"""The parts of torch.mps and torch.backends.mps whose C functions exist only in Apple's builds."""

import contextlib
import functools
import os

WHY = (
    "torch.mps and torch.backends.mps get what builds for Linux lack, compile_shader among it; checkpointing restores "
    "random state."
)
TARGETS = ("torch",)


def apply(module, replace):
    torch = module
    replace(torch._C, "_has_mps", True)
    replace(torch.mps, "current_device", _current_device)
    # torch.utils.checkpoint saves and restores the random state of devices whose module has these two; without them
    # dropout draws another mask in the recomputed forward, and the gradients are silently wrong.
    replace(torch.mps, "device", _device)
    replace(torch.mps, "_initialized", True)
    replace(torch.mps, "set_rng_state", _set_rng_state)
    # torch.manual_seed asks this. PyTorch's says True in every child of a process that has seeded the generator, though
    # no device was opened there, and the child would go on with its parent's random numbers. Seeds are host memory.
    replace(torch.mps, "_is_in_bad_fork", _false)
    for name, function in {
        "_mps_get_name": _get_name,
        "_mps_get_core_count": _get_core_count,
        "_mps_isCaptureEnabled": _false,
        "_mps_isCapturing": _false,
        "_mps_startCapture": _no_metal("Metal capture (torch.mps.profiler.metal_capture)"),
        "_mps_stopCapture": _nothing,  # runs in a finally, behind the error of _mps_startCapture
        "_mps_compileShader": _compile_shader,
        "_mps_loadMetalllib": _no_metal("Loading a Metal library (torch.mps.load_metallib)"),
        "_mps_loadMetallibFromPath": _no_metal("Loading a Metal library (torch.mps.load_metallib)"),
        "_mps_host_alias_storage": _host_alias_storage,
    }.items():
        replace(torch._C, name, function)
    # PyTorch's own pastes the texts of <c10/metal/...> into the source before it hands that on.
    replace(torch.mps, "compile_shader", _compile_shader)
    _give_streams(torch, replace)
    _forget_answers()
    os.register_at_fork(after_in_child=_forget_answers)  # the device does not survive a fork


def _give_streams(torch, replace) -> None:
    """In torch.mps and in torch.mps.streams, where PyTorch has it (2.15): its own Stream is a stand-in that raises."""
    from torch_anymps import streams

    for owner in (torch.mps, getattr(torch.mps, "streams", None)):
        for name in ("Stream", "stream", "current_stream", "default_stream", "set_stream") if owner else ():
            replace(owner, name, getattr(streams, name))
    replace(torch.mps.Event, "record", streams.record_event)
    replace(torch.mps.Event, "wait", streams.wait_event)


def _forget_answers() -> None:
    import torch

    backend = torch.backends.mps
    for cached in (
        backend.is_available,
        backend.is_macos_or_newer,
        backend.is_macos13_or_newer,
        backend.get_name,
        backend.get_core_count,
    ):
        cached.cache_clear()


def _current_device() -> int:
    """Index of the current mps device: there is one, as on a Mac."""
    return 0


@contextlib.contextmanager
def _device(device):
    """Context in which `device`, an index or a torch.device, is the current one: there is one, so nothing changes."""
    import torch

    with torch.accelerator.device_index(device if isinstance(device, int) else torch.device(device).index or 0):
        yield


def _set_rng_state(new_state, device="mps") -> None:
    """Without the copy of PyTorch's, which modes, as of fake tensors, take for one of theirs; CUDA's has none, too."""
    import torch

    state = new_state if new_state.is_contiguous() else new_state.contiguous()
    torch.mps._get_default_mps_generator().set_state(state)


@functools.cache
def _device_info() -> dict:
    import json

    import torch

    return json.loads(torch.ops.anymps.device_info())


def _get_name() -> str:
    return _device_info()["name"]


def _get_core_count() -> int:
    """Compute units; on a software driver the CPU's cores; where the driver does not tell those of its profile."""
    info = _device_info()
    return os.cpu_count() if info["kind"] == "software" else info["planned_compute_units"]


def _false() -> bool:
    return False


def _nothing() -> None:
    pass


def _no_metal(what: str):
    def refuse(*_):
        raise RuntimeError(f"{what} needs Apple's Metal, and this mps device runs on Vulkan.")

    return refuse


def _compile_shader(source: str):
    """torch.mps.compile_shader: see torch_anymps.user_kernels.compile_shader."""
    from torch_anymps.user_kernels import compile_shader

    return compile_shader(source)


def _host_alias_storage(storage):
    import torch

    if storage.device.type != "mps":
        raise RuntimeError(f"Expected a storage on mps, got one on {storage.device}.")
    whole = torch.empty(0, dtype=torch.uint8, device="mps").set_(storage)
    return torch.ops.anymps.host_alias(whole).untyped_storage()
