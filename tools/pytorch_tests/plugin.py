"""pytest plugin for PyTorch's own generic device tests: loaded by run.py with -p, before a test module is imported.

Only tests which PyTorch instantiates for one device are kept. Their outcomes, without the device's name, go into the
JSON file of --device-results, every few seconds, so that they outlive a run that is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time

import pytest
import torch
import torch.nn.attention.flex_attention
from torch.testing._internal import (
    common_cuda,
    common_device_type,
    common_methods_invocations,
    common_mkldnn,
    common_nn,
    common_utils,
)

DEVICE = os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"]
OPENED_FOR_MPS = ("skipMPS", "expectedFailureMPS", "expectedFailureMPSComplex", "expectedFailureMPSPre15")
SECONDS_BETWEEN_WRITES = 5
FULL_DTYPE = re.compile(r"float64|complex128|Float64|Double")

common_utils.MACOS_VERSION = 26.0  # -1 on Linux, which would select the lists of the oldest macOS

# What tests of older trees import and torch no longer has.
RENAMED = [
    (common_cuda, "tf32_is_not_fp32", lambda: True),
    (common_methods_invocations, "binary_ufuncs_and_refs", common_methods_invocations.binary_ufuncs),
    (common_mkldnn, "bf32_on_and_off", lambda *args, **kwargs: lambda test: test),
    (common_nn, "new_module_tests", []),
    (torch.nn.attention.flex_attention, "create_nested_block_mask", None),
]
for _module, _name, _value in RENAMED:
    if not hasattr(_module, _name):
        setattr(_module, _name, _value)


def _instantiated_for_mps():
    instantiate = common_device_type.instantiate_device_type_tests

    def instantiate_device_type_tests(*args, **kwargs):
        only_for = kwargs.get("only_for")
        if only_for and {"cpu", "cuda"} <= set(only_for):  # all that functorch's tests know
            kwargs["only_for"] = (*only_for, "mps")
        return instantiate(*args, **{**kwargs, "allow_mps": True})

    return instantiate_device_type_tests


common_device_type.instantiate_device_type_tests = _instantiated_for_mps()
for _name in OPENED_FOR_MPS:  # decorators of what fails on Apple's device
    setattr(common_device_type, _name, lambda test: test)


def pytest_addoption(parser):
    parser.addoption("--device-results", metavar="FILE", help="where outcomes are written, as JSON")
    parser.addoption("--device-failed-in", metavar="FILE", help="run only what failed in these outcomes")


def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if getattr(item.cls, "device_type", None) == DEVICE]
    if file := config.getoption("--device-failed-in"):
        with open(file) as text:
            outcomes = json.load(text)["outcomes"]
        failed = {key for key, entry in outcomes.items() if entry["outcome"] == "failed"}
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


class Outcomes:
    """Outcome and first line of the error of every test; lives in the process that the user started."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: dict[str, dict[str, str]] = {}
        self.written = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        for nodeid in ids:
            self.found.setdefault(key_of(nodeid), {"outcome": "not run"})
        self.write()

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        text = str(report.longrepr or "")
        outcome = report.outcome
        if outcome == "failed" and "Unexpected success" in text:
            outcome = "passed"  # expected to fail on Apple's device
        entry = {"outcome": outcome}
        if outcome == "failed":
            errors = re.findall(r"^E +(.*)", text, re.MULTILINE)
            entry["message"] = (errors[0] if errors else text.strip().split("\n")[-1])[:300]
            if any(FULL_DTYPE.search(line) for line in errors):
                entry["needs"] = "float64"
        if outcome == "skipped":
            entry["message"] = text[-200:]
        self.found[key_of(report.nodeid)] = entry
        if time.monotonic() - self.written > SECONDS_BETWEEN_WRITES:
            self.write()

    def pytest_sessionfinish(self):
        self.write()

    def write(self):
        with open(f"{self.path}.new", "w") as file:
            json.dump(self.found, file, indent=0)
        os.replace(f"{self.path}.new", self.path)
        self.written = time.monotonic()


@pytest.fixture(autouse=True)
def _errors_stay_with_their_test():
    """What the device has still to report belongs to the test that caused it."""
    yield
    if DEVICE == "mps":
        with contextlib.suppress(RuntimeError):
            torch.mps.synchronize()


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    path = config.getoption("--device-results")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path))
