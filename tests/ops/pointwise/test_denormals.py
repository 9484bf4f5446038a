"""Subnormal floats where the device flushes them in arithmetic, as most GPUs do and a software driver when asked to."""

from __future__ import annotations

import pytest

# A sample of what has kernels of its own on GPUs, which take long to compile here.
GPU = (
    "bfloat16 and not True and (lt-torch or eq-torch or bool-torch or masked-torch or any-torch or amax-torch"
    " or [max-torch or searchsorted or isin or nonzero or pool)"
)


@pytest.mark.parametrize("kernels, tests", [("software", ""), ("gpu", GPU)], ids=["software", "gpu"])
def test_order_and_bits_are_kept(kernels, tests, software, passes):
    if not software and kernels == "gpu":
        pytest.skip("a GPU has had these kernels already")
    env = {"ANYMPS_TEST_FLUSHED": "1", "ANYMPS_KERNELS": kernels} if software else {}
    passes("denormal_cases.py", tests, **env)
