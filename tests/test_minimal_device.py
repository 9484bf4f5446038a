"""A device without any optional feature (ANYMPS_CAPS=minimal): a part of other files' tests. The whole suite runs so
with the variable set."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    "file, tests",
    [
        ("test_smoke.py", ""),
        pytest.param("test_softmax.py", "float16", marks=pytest.mark.long),
        pytest.param("test_matmul.py", "mm_types", marks=pytest.mark.long),
        pytest.param("test_indexing.py", "scatter or embedding", marks=pytest.mark.long),
        ("test_complex_half.py", ""),
    ],
)
def test_with_no_option(file, tests, passes):
    passes(file, tests, ANYMPS_CAPS="minimal")


def test_options_are_off(run_python):
    source = "import torch; print(torch.ops.anymps.device_info())"
    device = json.loads(run_python(source, env={"ANYMPS_CAPS": "minimal"}).stdout)
    assert not any(device["features"][name] for name in ("fp16", "bf16", "coopmat", "atomics", "external memory"))
    assert device["shared_memory_bytes"] <= 16384
