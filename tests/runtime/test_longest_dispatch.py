"""No dispatch on tensors of 2^28 elements may run for as long as kernel drivers let a slow GPU work: by the estimate
that splits them, on devices that run nothing (tests/vulkan_layer) and have memory for all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from device_profiles import environment, layer_folder

SECONDS = 0.5  # DeviceInfo::kMaxSubmissionSeconds
PROGRAM = Path(__file__).parents[1] / "support/longest_dispatches.py"
EVERY = 16  # of op_db's operators, but with --op-db-full

pytestmark = pytest.mark.skipif(
    layer_folder() is None, reason="the layer is not built (cmake -DANYMPS_BUILD_TESTS=ON, target anymps_device_layer)"
)


@pytest.fixture
def longest(tmp_path, run_python):
    """What longest_dispatches.py finds on an integrated GPU of tests/devices."""

    def run(name, *arguments):
        variables = environment(name, tmp_path, subgroups=True)
        profile = Path(variables["ANYMPS_DEVICE_PROFILE"])
        large = re.sub(r"(?m)^heap \d+ ", f"heap {64 << 30} ", profile.read_text())
        large = re.sub(r"(?m)^(property max(?:Buffer|MemoryAllocation)Size) .*", rf"\1 {16 << 30}", large)
        profile.write_text(large)
        # The program splits nothing: the log says in how many parts it would.
        variables |= {"ANYMPS_RUN_NOTHING": "1", "ANYMPS_LOG": "dispatch", "ANYMPS_SUBMISSION_SECONDS": "0"}
        result = run_python(PROGRAM, *arguments, env=variables, timeout=3600)
        assert result.returncode == 0, result.stdout[-300:] + result.stderr[-3000:]
        return json.loads(result.stdout.splitlines()[-1])

    return run


def too_long(result):
    """[seconds of the longest part, of all parts, parts, kernel, grid, call] of each."""
    return [row for row in result["dispatches"] if row[0] > SECONDS]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["uhd_620", "vega_igpu"])
def test_products_sorts_convolutions_attention(name, longest):
    result = longest(name, "--every", "0")
    assert result["launched"] > 60 and len(result["small"]) < 5
    split = [row for row in result["dispatches"] if row[1] > 20]  # 16,384 x 16,384 times as many: 22 s
    assert any(row[3].startswith("matmul_") and row[2] >= 44 for row in split)
    assert not too_long(result)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["uhd_620", "vega_igpu"])
def test_operators(name, longest, request):
    every = 1 if request.config.getoption("--op-db-full") else EVERY
    result = longest(name, "--cases", "0", "--every", str(every))
    assert result["launched"] > 500 // every and len(result["small"]) < 0.25 * result["launched"]
    assert not too_long(result)
