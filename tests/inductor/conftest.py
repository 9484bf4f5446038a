"""Fixtures of torch.compile's tests."""

import dataclasses
import importlib
import pkgutil

import pytest
import torch
from slang_fixtures import in_new_process, slang

__all__ = ["in_new_process", "slang"]


@pytest.fixture(autouse=True)
def _nothing_is_compiled():
    """What a process has compiled before would make sizes dynamic here, and the ninth variant of a function eager."""
    torch._dynamo.reset()


@pytest.fixture
def epilogues_everywhere(monkeypatch, slang):
    """Steps become parts of products on devices with matrix units, too, whose own choice is against it."""
    from torch_anymps.inductor import graph_passes

    config = dataclasses.replace(graph_passes.device_config(), matrix_units=False)
    monkeypatch.setattr(graph_passes, "device_config", lambda: config)


@pytest.fixture
def as_a_gpu(monkeypatch, slang):
    """Kernels are generated as they are for a small GPU, where this is none: whichever driver it is, it runs them."""
    from torch._inductor.runtime.hints import DeviceProperties

    from torch_anymps import inductor

    units = 4
    modules = [
        importlib.import_module(f"{inductor.__name__}.{m.name}") for m in pkgutil.iter_modules(inductor.__path__)
    ]
    config = dataclasses.replace(
        inductor.device.device_config(), software=False, workgroup=256, vector=4, compute_units=units
    )
    for module in modules:
        if hasattr(module, "device_config"):
            monkeypatch.setattr(module, "device_config", lambda: config)
    monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: units)
    DeviceProperties.create.cache_clear()
    yield config
    DeviceProperties.create.cache_clear()
