"""docs/supported_ops.md and README say what the dispatcher says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_current(mps):
    tool = [sys.executable, "-P", ROOT / "tools" / "supported_ops.py", "--check"]
    result = subprocess.run(tool, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
