"""Every operator of PyTorch's op_db on mps beside the CPU under each of the checks of sweep_case.py: empty shapes,
torch.func, symbolic tracing, second derivatives, forward-mode AD, dispatch modes and tensor subclasses.

By default an operator has one check, chosen by --sweep-seed; `--sweep-full` (make test-sweep) runs every pair. Cases
run in a process of their own (sweep_worker.py), so one that ends it, or hangs, fails alone. What may fail stands in
op_db_sweep_exceptions.yaml with a reason; in the full run an entry that agrees is a failure, and `--op-db-prune` takes
such entries out of the file in any run. An entry with `device: gpu` does not hold on software drivers.
"""

from __future__ import annotations

import functools
import json
import time
import zlib
from pathlib import Path

import pytest
import torch
import yaml
from op_db_support import OPS
from sweep_case import CASES, CHECKS
from sweep_worker import Worker
from test_op_db import prune

FILE = Path(__file__).resolve().parent / "op_db_sweep_exceptions.yaml"
# A category, and the outcomes that an entry of it excuses.
CATEGORIES = {
    "undefined": ("wrong",),
    "tolerance": ("wrong",),
    "operators": ("operators",),
    "refused": ("wrong", "error", "unimplemented"),
    "unimplemented": ("unimplemented", "error"),
    "defect": ("died", "timeout", "wrong", "error", "unimplemented", "operators"),
}
SAMPLES, SAMPLES_OF_FULL = 1, 3  # of an operator
SECONDS = 150  # without a sign of life
BEGIN = time.monotonic()
AGREEING: set[tuple[str, str]] = set()  # entries of the file that have nothing to excuse


@functools.cache
def exceptions() -> dict[tuple[str, str], dict]:
    """The entries of the file by operator and check. Raises AssertionError where one is malformed or double."""
    found = {}
    device = "software" if json.loads(torch.ops.anymps.device_info())["kind"] == "software" else "gpu"
    for entry in yaml.safe_load(FILE.read_text()) or []:
        assert entry.get("device", "gpu") == "gpu", f"{entry['op']}: no kind of device"
        if "device" in entry and device != "gpu":
            continue
        assert entry["op"] in OPS, f"op_db has no operator {entry['op']}"
        assert entry["category"] in CATEGORIES and entry["reason"], f"{entry['op']}: a category and a reason, please"
        for check in entry["checks"]:
            key = (entry["op"], check)
            assert check in CHECKS and key not in found, f"{key} is no check, or stands there twice"
            found[key] = entry
    return found


def results_of(path: str | None) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if path and Path(path).exists() else []


def pytest_generate_tests(metafunc):
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    cases = CASES
    if not option("--sweep-full"):
        checks = list(CHECKS)
        chosen = {name: checks[(zlib.crc32(name.encode()) + option("--sweep-seed")) % len(checks)] for name in OPS}
        cases = [(name, check) for name, check in CASES if chosen[name] == check]
    done = {(r["op"], r["check"]) for r in results_of(option("--sweep-results"))}
    cases = [case for case in cases if case not in done]
    metafunc.parametrize("case", cases, ids=["-".join(case) for case in cases])


@pytest.fixture(scope="module")
def worker(request, mps):
    worker = Worker()
    yield worker
    worker.close()
    if request.config.getoption("--op-db-prune"):
        prune(FILE, "checks", AGREEING)


@pytest.mark.timeout(600)
def test_case(case, worker, request):
    option = request.config.getoption
    if option("--op-db-seconds") is not None and time.monotonic() - BEGIN > option("--op-db-seconds"):
        pytest.skip(f"not begun within {option('--op-db-seconds')} s")
    full = option("--sweep-full")
    result = worker.run(*case, SAMPLES_OF_FULL if full else SAMPLES, SECONDS)
    entry = exceptions().get(case)
    fails = result.outcome not in ("pass", "none")
    excused = fails and entry is not None and result.outcome in CATEGORIES[entry["category"]]
    if option("--sweep-results"):
        line = {"op": case[0], "check": case[1], "device": torch.backends.mps.get_name(), "seconds": result.seconds}
        line |= {"outcome": "excepted" if excused else "fail" if fails else result.outcome}
        line |= {"reason": f"{entry['category']}: {entry['reason']}"} if excused else {}
        line |= {"found": result.messages} if fails else {}
        with Path(option("--sweep-results")).open("a") as file:
            file.write(json.dumps(line) + "\n")
    if entry is not None and not fails and "device" not in entry:  # what races on GPUs may agree by chance
        AGREEING.add(case)
        assert not full, f"agrees now ({entry['category']}): take it out of {FILE.name}"
    assert not fails or excused, f"{result.outcome}: {result.counts} {result.messages[result.outcome]}"
