#!/usr/bin/env python3
"""Counts what tests wrote, in one run or in shards.

    op_db_counts.py OUT RESULTS.json...      of tests/op_db/test_op_db.py --op-db-results
    op_db_counts.py OUT RESULTS.jsonl...     of tests/op_db/test_sweep.py --sweep-results

Where an entry is there several times, the last one counts: entries that were run again come after the rest.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def counted(parts: list[dict]) -> dict:
    """One result of several; they must be of one device and one choice of samples."""
    for key in ("device", "samples"):
        assert len({part[key] for part in parts}) == 1, f"results of several: {key}"
    entries: dict[str, dict[str, dict[str, str]]] = {}
    for part in parts:
        for dtype, found in part["entries"].items():
            entries.setdefault(dtype, {}).update(found)
    left_out = {(name, dtype) for part in parts for name, dtype in part["left_out"] if name not in entries[dtype]}
    counts: dict[str, dict[str, Counter]] = {dtype: {} for dtype in entries}
    for dtype, operators in entries.items():
        for phases in operators.values():
            for phase, outcome in phases.items():
                counts[dtype].setdefault(phase, Counter())[outcome] += 1
    in_order = {d: {phase: dict(sorted(c.items())) for phase, c in v.items()} for d, v in counts.items()}
    samples = parts[0]["samples"] + (f"; {len(left_out)} entries left out for time" if left_out else "")
    return {"device": parts[0]["device"], "samples": samples, "counts": in_order}


def counted_sweep(lines: list[dict]) -> dict:
    """Outcomes by check, and excepted cases by reason."""
    cases = {(line["op"], line["check"]): line for line in lines}
    (device,) = {case["device"] for case in cases.values()}
    counts: dict[str, Counter] = {}
    reasons: Counter[str] = Counter()
    for (_, check), case in cases.items():
        counts.setdefault(check, Counter())[case["outcome"]] += 1
        reasons.update([case["reason"]] if "reason" in case else [])
    in_order = {check: dict(sorted(found.items())) for check, found in counts.items()}
    return {"device": device, "counts": in_order, "reasons": dict(reasons.most_common())}


def main() -> None:
    out, *results = map(Path, sys.argv[1:])
    if all(path.suffix == ".jsonl" for path in results):
        found = counted_sweep([json.loads(line) for path in results for line in path.read_text().splitlines()])
    else:
        found = counted([json.loads(path.read_text()) for path in results])
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
