"""The tiles of GPUs on whatever driver there is: other files' tests again, with ANYMPS_TILES=gpu.

ANYMPS_CAPS=no-matrices: drivers with cooperative matrices would multiply with these. A software driver takes seconds to
compile each such kernel, so few of them run there.
"""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "file, tests",
    [
        ("test_matmul.py", "mm_types or bmm_batches or views or empty or few_rows"),
        ("test_conv.py", "above_8 or in_and_out or few_channels or long_sums or depthwise"),
        ("test_attention.py", "decoding and dtype1"),
    ],
)
def test_with_shared_memory(file, tests, passes):
    passes(file, tests, ANYMPS_TILES="gpu", ANYMPS_CAPS="no-matrices")


# Without them tests are collected alone: an expression that chooses none fails on every driver.
MATRIX_UNITS = """
import json, pytest, sys, torch
has_units = json.loads(torch.ops.anymps.device_info())["features"]["coopmat"]
sys.exit(pytest.main({arguments!r} + ([] if has_units else ["--collect-only"])))
"""


@pytest.mark.parametrize(
    "files, tests",
    [
        (("test_conv.py", "test_conv_tf32.py"), "kinds_in_half or tf32"),
        (("test_matmul_scaled.py",), "layouts or batches or cannot or all_tiles"),
        (("test_matmul_fragments.py",), "float16 or run_so"),
        (("test_product_epilogues.py",), "dtype1 and (shape1 or shape2)"),
        (("test_rnn.py",), "low_precision and dtype0"),
        (("test_attention.py",), "hide_whole and dtype1 or least_number and dtype2"),
    ],
)
def test_with_the_matrix_units_of_a_driver(files, tests, path_of, run_python):
    arguments = ["-q", "-x", *[path_of(name) for name in files], "-k", tests]
    result = run_python(MATRIX_UNITS.format(arguments=arguments), env={"ANYMPS_TILES": "gpu"}, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr
    if " passed" not in result.stdout:
        pytest.skip("the driver has no cooperative matrices")


def test_with_matrix_units(run_python):
    source = """
import json, sys, torch
if not json.loads(torch.ops.anymps.device_info())["features"]["coopmat"]:
    print("no cooperative matrices")
    sys.exit()
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
