"""Copies of a process with PyTorch, in which run_python runs scripts: what they see and return is an interpreter's."""

from __future__ import annotations

import subprocess
import time

import pytest
from template_process import serves

SEEN = """if True:
    import gc, os, sys, threading
    import torch
    print(sys.argv, sys.path, __name__, sys.modules["__main__"].__dict__ is globals(), globals().get("__file__"))
    print(sorted(os.environ.items()), os.getcwd(), threading.active_count(), os.listdir("/proc/self/fd"))
    print(torch.backends.mps.is_available(), "torch_anymps" in sys.modules)
    print("to the end", file=sys.stderr)
    sys.exit(len(sys.argv))
"""


@pytest.mark.parametrize("from_file, variables", [(False, {}), (True, {"ANYMPS_DISABLE": "1"})])
def test_scripts_see_what_they_see_in_an_interpreter(run_python, tmp_path, monkeypatch, from_file, variables):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "script.py"
    file.write_text(SEEN)
    script = file if from_file else SEEN
    copy, interpreter = (run_python(script, "a", "-b", env=variables, fresh=fresh) for fresh in (False, True))
    for of in ("returncode", "stdout", "stderr"):
        assert getattr(copy, of) == getattr(interpreter, of)
    assert copy.returncode == 3 and copy.stderr == "to the end\n"


def test_ends(run_python):
    assert run_python("import os; os.abort()").returncode == -6
    failed = run_python("print('out', flush=True); 1 / 0")
    assert (
        failed.returncode == 1
        and failed.stdout == "out\n"
        and failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    )
    assert run_python("import atexit; atexit.register(print, 'hook'); x = 1").stdout == "hook\n"
    module = run_python("-m", "json.tool", "/no/such/file")
    assert module.returncode == 2 and "json.tool" in module.stderr


def test_a_copy_that_does_not_end_in_time_is_killed(run_python, tmp_path):
    file = tmp_path / "grows"
    file.touch()
    writes = f"import time\nwhile True:\n    open({str(file)!r}, 'a').write('x')\n    time.sleep(0.01)"
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(writes, timeout=0.5)
    time.sleep(0.3)
    size = file.stat().st_size
    time.sleep(0.3)
    assert file.stat().st_size == size


@pytest.mark.parametrize(
    "name, served",
    [
        ("ANYMPS_CAPS", True),
        ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", True),
        ("PYTORCH_ALLOC_CONF", False),
        ("OMP_NUM_THREADS", False),
        ("LD_PRELOAD", False),
        ("PYTHONWARNINGS", False),
        ("TORCHINDUCTOR_CACHE_DIR", True),
        ("TORCH_LOGS", False),
    ],
)
def test_what_is_read_at_the_start_gets_an_interpreter(name, served):
    assert serves(["ANYMPS_LOG", name]) == served
