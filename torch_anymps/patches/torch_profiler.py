"""torch.profiler knows its devices by name, and mps is none of them: columns, memory and timelines of mps."""

import functools
import types

WHY = "torch.profiler shows times and memory of mps beside those of the CPU; torch.mps.profiler writes a trace file."
TARGETS = (
    "torch",
    "torch.autograd.profiler",
    "torch.profiler.profiler",
    "torch.profiler._memory_profiler",
    "torch.accelerator.memory",
)


def apply(module, replace):
    if module.__name__ == "torch":
        replace(module._C, "_mps_profilerStartTrace", _start_trace)
        replace(module._C, "_mps_profilerStopTrace", _stop_trace)
    elif module.__name__ == "torch.autograd.profiler":
        replace(module.profile, "__init__", _with_mps(module.profile.__init__))
        replace(module.profile, "_parse_kineto_results", _counting_mps(module.profile._parse_kineto_results))
    elif module.__name__ == "torch.profiler.profiler":
        profile = module._KinetoProfile
        replace(profile, "__init__", _choosing_mps(profile.__init__))
        replace(profile, "export_memory_timeline", _of_the_first_device(profile.export_memory_timeline))
    elif module.__name__ == "torch.accelerator.memory":
        replace(module, "_snapshot", _of_mps(module._snapshot))
    else:
        timeline = module.MemoryProfileTimeline
        replace(timeline, "export_memory_timeline_html", _asking_accelerator(timeline.export_memory_timeline_html))


def _available() -> bool:
    import torch

    return torch.backends.mps.is_available()


def _start_trace(mode: str, wait_until_completed: bool) -> None:
    from torch_anymps import signposts

    signposts.start(mode, wait_until_completed)


def _stop_trace() -> None:
    from torch_anymps import signposts

    signposts.stop()


def _with_mps(init):
    """torch.autograd.profiler.profile takes use_device="mps", and takes it by itself where no other device is meant."""

    @functools.wraps(init)
    def __init__(self, *args, use_device=None, **kwargs):
        meant = use_device == "mps"
        init(self, *args, use_device=None if meant else use_device, **kwargs)
        if self.enabled and self.use_device is None and _available():
            self.use_device = "mps"

    return __init__


def _choosing_mps(init):
    """torch.profiler.profile with the CPU's activity means mps too, which has none of its own; so does cuda's here."""

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        import torch

        init(self, *args, **kwargs)
        absent = self.use_device is None or (self.use_device == "cuda" and not torch.cuda.is_available())
        if absent and _available():
            self.use_device = "mps"

    return __init__


class _Delegate:
    """An object of PyTorch's but for a method of this class."""

    def __init__(self, original) -> None:
        self._original = original

    def __getattr__(self, name):
        return getattr(self._original, name)


class _MemoryEvent(_Delegate):
    def device_type(self):
        """The sums of memory count these types: cuda's, XPU's and PrivateUse1's."""
        from torch.autograd import DeviceType

        return DeviceType.PrivateUse1


class _Results(_Delegate):
    def events(self):
        from torch.autograd import DeviceType
        from torch.autograd.profiler_util import MEMORY_EVENT_NAME

        return [
            _MemoryEvent(e) if e.name() == MEMORY_EVENT_NAME and e.device_type() == DeviceType.MPS else e
            for e in self._original.events()
        ]


def _counting_mps(parse):
    @functools.wraps(parse)
    def _parse_kineto_results(self, result, *args, **kwargs):
        return parse(self, _Results(result) if self.use_device == "mps" else result, *args, **kwargs)

    return _parse_kineto_results


def _of_the_first_device(export):
    """A timeline compares devices with their index: "mps" is "mps:0"."""

    @functools.wraps(export)
    def export_memory_timeline(self, path, device=None, *args, **kwargs):
        return export(self, path, "mps:0" if device == "mps" else device, *args, **kwargs)

    return export_memory_timeline


def _asking_accelerator(export):
    """The plot's title asks torch.cuda for peaks; for other devices a copy of the function asks torch.accelerator."""
    import torch

    accelerator = types.SimpleNamespace(device=torch.device, cuda=torch.accelerator)
    copy = types.FunctionType(
        export.__code__, {**export.__globals__, "torch": accelerator}, export.__name__, export.__defaults__
    )

    @functools.wraps(export)
    def export_memory_timeline_html(self, path, device_str, *args, **kwargs):
        of_mps = torch.device(device_str).type == "mps"
        return (copy if of_mps else export)(self, path, device_str, *args, **kwargs)

    return export_memory_timeline_html


def _of_mps(take):
    """PyTorch's function sends every accelerator but XPU to torch.cuda."""

    @functools.wraps(take)
    def _snapshot(*args, **kwargs):
        import torch

        from torch_anymps import memory

        of_mps = torch.accelerator.current_accelerator() == torch.device("mps")
        return memory.snapshot() if of_mps else take(*args, **kwargs)

    return _snapshot
