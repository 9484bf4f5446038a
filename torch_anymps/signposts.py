"""torch.mps.profiler: where a Mac writes signposts for Instruments, a trace file for Perfetto or chrome://tracing.

The file is mps_trace_<process>_<number>.json in ANYMPS_TRACE_DIR, or in the working folder; stop() says where.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import pathlib
import sys

MODES = ("interval", "event")
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")

_numbers = itertools.count()
_running = None  # (the profiler, its modes), while a trace is taken


def start(mode: str, wait_until_completed: bool) -> None:
    """torch._C._mps_profilerStartTrace. mode: "interval", "event" or both with a comma.

    wait_until_completed: the host waits for each command. Raises RuntimeError for another mode, while a trace is taken
    already, and, as torch.profiler does, while that profiles.
    """
    global _running
    import torch

    modes = [word for word in mode.split(",") if word]
    for word in modes:
        if word not in MODES:
            raise RuntimeError(f"Invalid Signpost trace mode: {word}")
    if _running is not None:
        raise RuntimeError("torch.mps.profiler takes a trace already: call torch.mps.profiler.stop() first")
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    torch.ops.anymps.set_trace_mode("wait" if wait_until_completed else "on")
    try:
        profiler.start()
    finally:
        torch.ops.anymps.set_trace_mode("on")
    _running = profiler, modes or ["interval"]
    atexit.register(stop)


def stop() -> None:
    """torch._C._mps_profilerStopTrace: writes the trace and says where. Nothing where none is taken."""
    global _running
    if _running is None:
        return
    (profiler, modes), _running = _running, None
    profiler.stop()
    folder = pathlib.Path(os.environ.get("ANYMPS_TRACE_DIR") or ".")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / f"mps_trace_{os.getpid()}_{next(_numbers)}.json"
    profiler.export_chrome_trace(str(path))
    if "event" in modes:
        _mark_completions(path, keep_intervals="interval" in modes)
    print(f"torch.mps.profiler: {path} (open it at https://ui.perfetto.dev)", file=sys.stderr)


def _mark_completions(path: pathlib.Path, keep_intervals: bool) -> None:
    """Adds an instant where each command of the device ended; without intervals it stands for the command."""
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    commands = [e for e in events if e.get("cat") in GPU_CATEGORIES]
    instants = [
        {"ph": "i", "s": "t", "cat": "gpu_event", "name": e["name"], "pid": e["pid"], "tid": e["tid"],
         "ts": e["ts"] + e["dur"], "args": e.get("args", {})}
        for e in commands
    ]  # fmt: skip
    if not keep_intervals:
        events = [e for e in events if e.get("cat") not in (*GPU_CATEGORIES, "ac2g")]
    trace["traceEvents"] = events + instants
    path.write_text(json.dumps(trace))
