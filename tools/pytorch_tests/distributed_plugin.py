"""pytest plugin for PyTorch's tests of torch.distributed: loaded by run.py with -p, before a test module is imported.

Ranks are forked from the process that has imported everything, which has not opened a device yet: a test costs tenths
of a second and not the imports of its ranks. What PyTorch's harnesses take for the number of devices is RANKS, and rank
N has mps:N as its device, as under torchrun.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import unittest
from multiprocessing.process import BaseProcess

import pytest
import torch
import torch.multiprocessing
from torch.distributed.tensor import _random

DEVICE = os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"]
if DEVICE == "mps":  # is there, without a look at the drivers, which a process must not have opened before it forks
    torch.backends.mps.is_available = torch._C._mps_is_available = lambda: True
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("mps")

import harness  # noqa: E402
from torch.testing._internal import (  # noqa: E402
    common_cuda,
    common_distributed,
    common_fsdp,
    common_utils,
    inductor_utils,
)
from torch.testing._internal.distributed._tensor import common_dtensor  # noqa: E402

RANKS = 4  # of most tests, as PyTorch's
RANKS_OF_WHEEL = 2  # of distributed_test.py, whose tests take any number
# Of a test, before PyTorch's harnesses end its ranks, by the variable that they read themselves.
SECONDS = int(os.environ.get("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", 100))
MEMORY = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
MEMORY += ("reset_peak_memory_stats", "reset_accumulated_memory_stats")  # that torch.mps lacks
OF_RANKS = (common_distributed.MultiProcessTestCase, common_distributed.MultiProcContinuousTest)

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", str(RANKS_OF_WHEEL))
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
common_distributed.TIMEOUT_DEFAULT = SECONDS
common_distributed.TIMEOUT_OVERRIDE.clear()

harness.instantiate_for_mps()


def _identity(test):
    return test


def _skip_above_ranks(count, *args, **kwargs):
    if isinstance(count, int) and count > RANKS:
        return unittest.skip(f"Skipped due to small world size: needs {count} devices")
    return _identity


def _open_for_device() -> None:
    """What the harnesses ask CUDA for before they let a test run is answered for DEVICE."""
    for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"):
        setattr(common_distributed, name, _skip_above_ranks)
    common_distributed.requires_accelerator_dist_backend = lambda backends=None: _identity
    common_distributed.DistTestCases.backend_feature[DEVICE] = {"gloo"}
    common_distributed.skip_if_no_gpu = _identity
    common_distributed.at_least_x_gpu = lambda count: count <= RANKS
    common_distributed.init_multigpu_helper = lambda world_size, backend: {rank: [rank] for rank in range(world_size)}
    common_distributed.DistributedTestBase.backend = lambda self, device: "gloo"
    common_dtensor.skip_if_lt_x_gpu = common_distributed.skip_if_lt_x_gpu
    common_dtensor.skip_unless_torch_gpu = _identity
    common_dtensor.DEVICE_TYPE = DEVICE
    common_dtensor.DEVICE_COUNT = common_dtensor.NUM_DEVICES = RANKS
    common_dtensor.PG_BACKEND = "gloo"
    common_dtensor.DTensorTestMixin.device_type = property(lambda self: DEVICE)
    common_dtensor.DTensorTestBase.backend = property(lambda self: "gloo")
    common_fsdp.DEVICE_TYPE = DEVICE
    common_fsdp.DISTRIBUTED_BACKEND = "gloo"
    common_fsdp.DEVICE_COUNT = common_fsdp.FSDPTestContinuous.world_size = RANKS
    inductor_utils.HAS_GPU = inductor_utils.HAS_GPU_AND_TRITON = True  # has a compiler
    common_utils.TEST_CUDA = common_cuda.TEST_CUDA = True  # for the test modules: the harnesses have taken theirs


def _set_device(device) -> None:
    """Takes any device: tests set those of other ranks, too."""


def _synchronize(synchronize):
    return lambda device=None: synchronize()


def _of_any_device(function):
    return lambda *args, **kwargs: function(*[arg for arg in args if isinstance(arg, torch.Tensor)])


def _resolve_device(device_mesh) -> torch.device:
    """Ranks that are threads of one process have one device, whatever their number is."""
    return resolve_device(device_mesh) if "LOCAL_RANK" in os.environ else torch.device(DEVICE, 0)


def _sleep(cycles) -> None:
    """Keeps the device busy for some milliseconds, whatever is asked for: software drivers need no more to be late."""
    torch.zeros(1 << 20, device=DEVICE).sin_()


def _memory_stats(device=None):
    """Has counters from the start, as those of CUDA, whose set_device opens the device."""
    torch.empty(0, device=DEVICE)
    return torch.accelerator.memory_stats()


def _give_devices() -> None:
    """DEVICE has RANKS devices, and what tests call of torch.cuda."""
    module = torch.get_device_module(DEVICE)
    if DEVICE == "cpu":
        module.manual_seed = torch.manual_seed
        torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_device_index = lambda: 0
        torch.accelerator.synchronize = lambda *args, **kwargs: None
    module.synchronize = _synchronize(module.synchronize)
    module._sleep = _sleep
    if not hasattr(module, "initial_seed"):
        module.initial_seed = torch.initial_seed
    for name in ("get_rng_state", "set_rng_state"):  # of every device that is counted
        setattr(module, name, _of_any_device(getattr(torch, name) if DEVICE == "cpu" else getattr(module, name)))
    for name in MEMORY:
        if not hasattr(module, name):
            setattr(module, name, getattr(torch.accelerator, name))
    module.memory_stats = _memory_stats
    common_utils.get_cycles_per_ms = lambda device=DEVICE: 1.0
    torch.accelerator.device_count = module.device_count = lambda: RANKS
    torch.accelerator.set_device_index = module.set_device = _set_device
    torch.Tensor.cuda = lambda self, device=None, **kwargs: self.to(DEVICE)
    torch.nn.Module.cuda = lambda self, device=None: self.to(DEVICE)


def _run_as_rank(process) -> None:
    """Tells a process its number before it opens a device."""
    rank = process._args[0] if process._args and isinstance(process._args[0], int) else 0
    os.environ["LOCAL_RANK"] = str(rank)
    _run(process)


def _start(process) -> None:
    """Lavapipe keeps the memory of its devices in a file, which a fork would share: the ranks' tensors in one place."""
    with open("/proc/self/maps") as maps:
        if process._start_method != "spawn" and "libvulkan_" in maps.read():
            raise RuntimeError("The process that starts ranks has opened the drivers of Vulkan.")
    _start_process(process)


def _spawn_processes(self) -> None:
    self._start_processes(torch.multiprocessing.get_context("fork").Process)


def _live_again(ensure):
    """A class whose ranks stay gets new ones after a failure, where PyTorch skips the rest of its tests."""

    def ensure_processes_spawned(cls):
        if cls.poison_pill:
            for process in cls.processes:
                process.kill()
                process.join()
            cls._processes_spawned = cls.poison_pill = False
        ensure.__func__(cls)

    return classmethod(ensure_processes_spawned)


_open_for_device()
_give_devices()
resolve_device, _random._resolve_device = _random._resolve_device, _resolve_device
_run, _start_process = BaseProcess.run, BaseProcess.start
BaseProcess.run, BaseProcess.start = _run_as_rank, _start
multiprocessing.set_start_method("fork", force=True)
common_distributed.MultiProcessTestCase._spawn_processes = _spawn_processes
common_distributed.MultiProcContinuousTest._ensure_processes_spawned = _live_again(
    vars(common_distributed.MultiProcContinuousTest)["_ensure_processes_spawned"]
)

pytest_addoption = harness.add_part_options


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config, items):
    harness.select_part(config, items)
    items.sort(key=_place)


def _place(item) -> tuple[bool, str]:
    """Classes of ranks come first, as others open the device here, and a class at a time: its ranks may stay."""
    return not (item.cls and issubclass(item.cls, OF_RANKS)), item.cls.__qualname__ if item.cls else ""


def pytest_runtest_makereport(item, call):
    """Ranks that stay are still at a test that pytest has stopped, and would answer for the next one."""
    if not call.excinfo or call.excinfo.errisinstance((unittest.SkipTest, pytest.skip.Exception)):
        return
    if item.cls and issubclass(item.cls, common_distributed.MultiProcContinuousTest):
        item.cls.poison_pill = True


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    harness.collect_outcomes(config, harness.key_of_twin)
