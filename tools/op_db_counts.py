#!/usr/bin/env python3
"""Counts what tests/test_op_db.py --op-db-results wrote, in one run or in shards: op_db_counts.py OUT RESULTS.json...

Where several files have an entry, the last one counts: entries that were run again come after the rest.
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


if __name__ == "__main__":
    out, *results = map(Path, sys.argv[1:])
    out.write_text(json.dumps(counted([json.loads(path.read_text()) for path in results]), indent=1) + "\n")
