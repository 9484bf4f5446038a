"""The shared-memory tiles of GPUs on whatever driver there is: other files' tests again, with ANYMPS_TILES=gpu."""

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
    result = run_python(source, env={"ANYMPS_TILES": "gpu"}, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
