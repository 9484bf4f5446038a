#!/usr/bin/env python3
"""Adds up the counts that shards of tests/test_op_db.py wrote: op_db_counts.py OUT SHARD.json..."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def added(parts: list[dict]) -> dict:
    """One result of several; they must be of one device and one choice of samples."""
    assert len({part["device"] for part in parts}) == 1, "results of different devices"
    counts: dict[str, dict[str, Counter]] = {}
    for part in parts:
        for dtype, phases in part["counts"].items():
            for phase, found in phases.items():
                counts.setdefault(dtype, {}).setdefault(phase, Counter()).update(found)
    sorted_counts = {d: {phase: dict(sorted(c.items())) for phase, c in v.items()} for d, v in counts.items()}
    return {**parts[0], "counts": sorted_counts}


if __name__ == "__main__":
    out, *shards = map(Path, sys.argv[1:])
    out.write_text(json.dumps(added([json.loads(shard.read_text()) for shard in shards]), indent=1) + "\n")
