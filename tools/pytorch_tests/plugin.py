"""pytest plugin for PyTorch's own generic device tests: loaded by run.py with -p, before a test module is imported.

Only tests which PyTorch instantiates for one device are kept. Their outcomes, without the device's name, go into the
JSON file of --device-results, every few seconds, so that they outlive a run that is stopped.
"""

from __future__ import annotations

import os
import re

import harness
import pytest
import torch
import torch.nn.attention.flex_attention
from harness import DEVICE, errors_stay_with_their_test  # noqa: F401
from torch.testing._internal import (
    common_cuda,
    common_device_type,
    common_methods_invocations,
    common_mkldnn,
    common_nn,
    common_utils,
)

OPENED_FOR_MPS = ("skipMPS", "expectedFailureMPS", "expectedFailureMPSComplex", "expectedFailureMPSPre15")

harness.instantiate_for_mps()
# What tests of older trees import and torch no longer has.
harness.supply(
    [
        (common_cuda, "tf32_is_not_fp32", lambda: True),
        (common_methods_invocations, "binary_ufuncs_and_refs", common_methods_invocations.binary_ufuncs),
        (common_mkldnn, "bf32_on_and_off", lambda *args, **kwargs: lambda test: test),
        (common_nn, "new_module_tests", []),
        (torch.nn.attention.flex_attention, "create_nested_block_mask", None),
    ]
)
for _name in OPENED_FOR_MPS:  # decorators of what fails on Apple's device
    setattr(common_device_type, _name, lambda test: test)
common_utils.skipIfMPS = lambda test: test


pytest_addoption = harness.add_options


def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if getattr(item.cls, "device_type", None) == DEVICE]
    if file := config.getoption("--device-failed-in"):
        failed = harness.failed_in(file)
        items[:] = [item for item in items if key_of(item.nodeid) in failed]
    # setUp and tearDown of 2.6 choose CUDA's arithmetic, and super(self.__class__, self) there never ends today.
    for cls in {cls for item in items for cls in item.cls.__mro__ if cls.__module__ == "test_linalg"}:
        for name in {"setUp", "tearDown"} & cls.__dict__.keys():
            delattr(cls, name)


def key_of(nodeid: str) -> str:
    """test_torch.py::TestTorchDeviceTypeMPS::test_add_mps_float32 -> the same with DEVICE for the device's name."""
    file, group, name = nodeid.split("::")
    return f"{os.path.basename(file)}::{group.removesuffix(DEVICE.upper())}::" + re.sub(
        rf"_{DEVICE}(?=_|$)", "_DEVICE", name, count=1
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    harness.collect_outcomes(config, key_of)
