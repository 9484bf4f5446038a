"""The tiles of GPUs on whatever driver there is: other files' tests again, with ANYMPS_TILES=gpu.

ANYMPS_CAPS=minimal: drivers with cooperative matrices would multiply with these. A software driver takes seconds to
compile each such kernel, so few of them run there.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "file, tests",
    [
        ("test_matmul.py", "mm_types or bmm_batches or views or empty"),
        ("test_conv.py", "above_8 or in_and_out or few_channels or long_sums"),
    ],
)
def test_with_shared_memory(file, tests, run_python):
    arguments = ["-q", "-x", str(Path(__file__).with_name(file)), "-k", tests]
    source = f"import sys, pytest; sys.exit(pytest.main({arguments!r}))"
    result = run_python(source, env={"ANYMPS_TILES": "gpu", "ANYMPS_CAPS": "minimal"}, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


def test_with_matrix_units(run_python):
    source = """
import json, torch
if not json.loads(torch.ops.anymps.device_info())["features"]["coopmat"]:
    print("no cooperative matrices")
    raise SystemExit
for a, b in ((torch.randn(40, 72), torch.randn(72, 48)), (torch.randn(35, 51), torch.randn(37, 51).t())):
    a, b = a.half(), b.half()
    error = (torch.mm(a.to("mps"), b.to("mps")).cpu().double() - a.double() @ b.double()).abs()
    assert (error <= 1e-3 * (a.double().abs() @ b.double().abs())).all(), error.max()
print("compared")
"""
    result = run_python(source, env={"ANYMPS_TILES": "gpu"}, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    if "compared" not in result.stdout:
        pytest.skip("the driver has no cooperative matrices")
