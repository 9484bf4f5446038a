"""pytest plugin for PyTorch's tests of torch.compile (test/inductor): loaded by run.py with -p, before a test module.

What the files take for a sign of Triton (HAS_GPU and its like) is true for mps, so that tests which need any GPU run;
those that need Triton itself fail or skip, and inductor_exceptions.yaml names them. Of twins for several devices the
one for DEVICE is kept.
"""

from __future__ import annotations

import json
import os
import re
import unittest
import zlib
from pathlib import Path

import harness
import pytest
from harness import DEVICE, errors_stay_with_their_test  # noqa: F401
from torch._inductor import compile_fx
from torch._inductor.fx_passes import fusion_regions
from torch.testing._internal import (
    common_device_type,
    common_methods_invocations,
    inductor_utils,
    triton_utils,
)

harness.instantiate_for_mps()

# What tests of a tree that is not quite the installed torch import.
harness.supply(
    [
        (common_methods_invocations, "skipOps", lambda case, test, to_skip: common_device_type.skipOps(to_skip)),
        (compile_fx, "complex_memory_overlap", None),
        (fusion_regions, "collapse_fusion_regions", None),
        (fusion_regions, "expand_fusion_regions", None),
    ]
)
for _name in ("add_kernel", "add_kernel_2d_autotuned", "sub_kernel"):  # kernels of Triton
    if not hasattr(triton_utils, _name):
        setattr(triton_utils, _name, None)

if DEVICE == "mps":
    for _name in ("HAS_GPU", "HAS_GPU_AND_TRITON", "HAS_MPS", "RUN_GPU"):
        setattr(inductor_utils, _name, True)
    inductor_utils.HAS_CPU = inductor_utils.RUN_CPU = False
    inductor_utils.GPU_TYPE = "mps"
    triton_utils.requires_gpu = triton_utils.requires_gpu_and_triton = unittest.skipUnless(True, "")

TWINS = re.compile(r"(Cpu|GPU|CPU|MPS)(?=Tests?$|$)")
OTHER_DEVICES = {"cpu", "cuda", "xpu", "mps", "meta"} - {DEVICE}


def key_of(nodeid: str) -> str:
    """test_torchinductor.py::GPUTests::test_add_mps -> test_torchinductor.py::Tests::test_add_DEVICE, as on the CPU."""
    file, *groups, name = nodeid.split("::")
    if name.endswith(f"_{DEVICE}"):
        name = name.removesuffix(DEVICE) + "DEVICE"
    else:
        name = re.sub(rf"_{DEVICE}(?=_|$)", "_DEVICE", name, count=1)
    return "::".join([os.path.basename(file), *(TWINS.sub("", group) for group in groups), name])


def of_another_device(item) -> bool:
    device = getattr(item.cls, "device_type", None) or getattr(item.cls, "device", None)
    return isinstance(device, str) and device.split(":")[0] in OTHER_DEVICES


def pytest_addoption(parser):
    harness.add_options(parser)
    parser.addoption("--next", metavar="N", type=int, default=0, help="run N tests of what is left")
    parser.addoption("--known", metavar="FILE", help="with --next: the keys of the tests that are not left, as JSON")


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if not of_another_device(item)]
    if file := config.getoption("--device-failed-in"):
        failed = harness.failed_in(file)
        items[:] = [item for item in items if key_of(item.nodeid) in failed]
    if file := config.getoption("--known"):
        known = set(json.loads(Path(file).read_text()))
        items[:] = [item for item in items if key_of(item.nodeid) not in known]
        items.sort(key=lambda item: zlib.crc32(key_of(item.nodeid).encode()))  # a part is spread over the file
        items[config.getoption("--next") :] = []


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    harness.collect_outcomes(config, key_of)
