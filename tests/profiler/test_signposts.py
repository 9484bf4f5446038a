"""torch.mps.profiler writes a trace file where a Mac has signposts."""

import json

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mps")

SIGNPOSTS = """
import torch
x = torch.ones(1000, device="mps")
x.neg()
torch.mps.synchronize()
with torch.mps.profiler.profile(mode={mode!r}, wait_until_completed={wait}):
    for _ in range(5):
        x.neg()
"""


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("mode", ["interval", "event", "interval, event"])
def test_signposts_are_a_trace_file(tmp_path, mode, wait, run_python):
    source = SIGNPOSTS.format(mode=mode, wait=wait)
    done = run_python(source, env={"ANYMPS_TRACE_DIR": str(tmp_path / "traces")})
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "traces").iterdir()
    assert f"torch.mps.profiler: {file} " in done.stderr
    events = json.loads(file.read_text())["traceEvents"]
    intervals = [e for e in events if e.get("cat") == "kernel"]
    instants = [e for e in events if e.get("cat") == "gpu_event"]
    assert len(intervals) == (5 if "interval" in mode else 0)
    assert len(instants) == (5 if "event" in mode else 0)
    assert all(e["name"] == "neg_f32_dense" for e in intervals + instants)
    if wait and intervals:
        calls = sorted(e["ts"] for e in events if e.get("name") == "vkCmdDispatch")
        ends = [e["ts"] + e["dur"] for e in intervals]
        assert all(end <= call + 50 for end, call in zip(ends, calls[1:], strict=False))


def test_signposts_refuse_what_they_cannot_do(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYMPS_TRACE_DIR", str(tmp_path))
    torch.mps.profiler.stop()
    with pytest.raises(RuntimeError, match="Invalid Signpost trace mode: often"):
        torch.mps.profiler.start("interval,often")
    torch.mps.profiler.start()
    with pytest.raises(RuntimeError, match="takes a trace already"):
        torch.mps.profiler.start()
    torch.mps.profiler.stop()
    assert len(list(tmp_path.iterdir())) == 1
