"""Every operator of PyTorch's op_db on mps beside the CPU: forward in every dtype, gradients in float32 and float16.

By default float32 runs with up to 200 samples an operator (which leaves some of pooling and convolution out, for
time), and other dtypes with a few each; `--op-db-full` (make test-full) runs everything. What may fail stands in
op_db_exceptions.yaml, with a reason; in the full run an entry whose operator passes is a failure, and `--op-db-prune`
takes such entries out of the file in any run.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path

import pytest
import torch
import yaml
from op_db_support import OPS, run_op

HERE = Path(__file__).resolve().parent
DTYPES = ["float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"]
DTYPES += ["complex64", "complex32"]
WITH_GRADIENT = ("float32", "float16")
PHASES = ("forward", "gradient")
# A category is what PyTorch calls its own lists for Apple's device, and the outcomes that an entry of it excuses.
CATEGORIES = {
    "unimplemented": ("unimplemented", "error"),
    "undefined": ("wrong",),
    "tolerance": ("wrong",),
    "gradient": ("unimplemented", "error", "wrong"),
}
SAMPLES = {"float32": 200}  # of an operator, at most; all in nearly every operator
FEW = 2  # in the other dtypes

CASES = [
    (name, dtype) for dtype in DTYPES for name, op in OPS.items() if op.supports_dtype(getattr(torch, dtype), "cpu")
]
BEGIN = time.monotonic()
AGREEING: set[tuple[str, str, str]] = set()  # entries of the file that have nothing to excuse
LEFT_OUT: list[tuple[str, str]] = []
RESULTS: dict[str, dict[str, dict[str, str]]] = {dtype: {} for dtype in DTYPES}  # of operators, by phase


@functools.cache
def exceptions() -> dict[tuple[str, str, str], dict]:
    """The entries of the file by operator, dtype and phase. Raises AssertionError where one is malformed or double."""
    found = {}
    for entry in yaml.safe_load((HERE / "op_db_exceptions.yaml").read_text()) or []:
        assert entry["op"] in OPS, f"op_db has no operator {entry['op']}"
        assert entry["category"] in CATEGORIES and entry["reason"], f"{entry['op']}: a category and a reason, please"
        assert entry["phase"] in PHASES, f"{entry['op']}: the phase is one of {PHASES}"
        for dtype in entry["dtypes"]:
            key = (entry["op"], dtype, entry["phase"])
            assert dtype in DTYPES and key not in found, f"{key} is no type of this test, or stands there twice"
            if entry.get("driver", "") in torch.backends.mps.get_name():
                found[key] = entry
    return found


def prune(file: Path, field: str, agreeing: set[tuple]) -> None:
    """Takes the entries that agree out of a file, which has one a line.

    field: the list of an entry, as "dtypes". agreeing: keys whose second part is of that list.
    """
    kept = []
    for line in file.read_text().splitlines():
        for entry in yaml.safe_load(line) or []:
            rest = (entry["phase"],) if "phase" in entry else ()
            left = [d for d in entry[field] if (entry["op"], d, *rest) not in agreeing]
            line = line.replace(f"[{', '.join(entry[field])}]", f"[{', '.join(left)}]") if left else None
        kept += [line] if line is not None else []
    file.write_text("\n".join(kept) + "\n")


@pytest.fixture(scope="module", autouse=True)
def results(request):
    """After the last test: --op-db-prune, and the outcomes where --op-db-results wants them."""
    yield
    if request.config.getoption("--op-db-prune"):
        prune(HERE / "op_db_exceptions.yaml", "dtypes", AGREEING)
    path = request.config.getoption("--op-db-results")
    if path:
        full = request.config.getoption("--op-db-full")
        samples = "all samples" if full else f"up to {SAMPLES['float32']} samples in float32, {FEW} in other dtypes"
        found = {"device": torch.backends.mps.get_name(), "samples": samples, "left_out": LEFT_OUT, "entries": RESULTS}
        Path(path).write_text(json.dumps(found, indent=1) + "\n")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("all_bits_of_f32", "poisoned_memory")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_op(name, dtype, mps, request):
    seconds = request.config.getoption("--op-db-seconds")
    if seconds is not None and time.monotonic() - BEGIN > seconds:
        LEFT_OUT.append((name, dtype))
        pytest.skip(f"not begun within {seconds} s")
    full = request.config.getoption("--op-db-full")
    limit = None if full else SAMPLES.get(dtype, FEW)
    reports = run_op(OPS[name], getattr(torch, dtype), limit, dtype in WITH_GRADIENT)
    whole = full or dtype in SAMPLES  # a few samples may miss the one that fails
    problems = []
    outcomes = RESULTS[dtype].setdefault(name, {})
    for phase, report in reports.items():
        entry = exceptions().get((name, dtype, phase))
        fails = report.outcome not in ("pass", "none")
        excused = fails and entry is not None and report.outcome in CATEGORIES[entry["category"]]
        outcomes[phase] = "excepted" if excused else "fail" if fails else report.outcome
        if fails and not excused:
            problems.append(f"{phase}: {report.outcome}: {dict(report.counts)} {report.messages[report.outcome]}")
        elif entry is not None and whole and not fails:
            AGREEING.add((name, dtype, phase))
            if full:
                problems.append(f"{phase}: agrees now ({entry['category']}): take it out of op_db_exceptions.yaml")
    assert not problems, "\n".join(problems)
