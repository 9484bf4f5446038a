"""pytest plugin for PyTorch's tests of torch.compile (test/inductor): loaded by run.py with -p, before a test module.

What the files take for a sign of Triton (HAS_GPU and its like) is true for mps, so that tests which need any GPU run;
those that need Triton itself fail or skip, and inductor_exceptions.yaml names them. Of twins for several devices the
one for DEVICE is kept.
"""

from __future__ import annotations

import logging
import re
import sys
import unittest

import harness
import pytest
from harness import DEVICE, errors_stay_with_their_test  # noqa: F401
from torch._inductor import codecache, compile_fx
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
        (codecache, "cpp_prefix_path", None),
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
    inductor_utils.HAS_CUDA = True  # of 2.6
    for _name in ("requires_cuda", "requires_gpu", "requires_gpu_and_triton"):
        setattr(triton_utils, _name, unittest.skipUnless(True, ""))


class CurrentStderr:
    """sys.stderr as it is at each line: tests put their own there, and read the log from it."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


for _name in filter(re.compile(r"torch\b").match, logging.root.manager.loggerDict):
    for _handler in logging.getLogger(_name).handlers:
        if type(_handler) is logging.StreamHandler:
            _handler.setStream(CurrentStderr())

pytest_addoption = harness.add_part_options


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config, items):
    harness.select_part(config, items)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    harness.collect_outcomes(config, harness.key_of_twin)
