"""csrc/ops/aten_kernels.yaml -> registrations of ATen's own kernels for dispatch keys on mps.

The keys are explained at the top of the table itself.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from .registration import Entry, Family, family_outputs, shard_of
from .schema import CodegenError, Schema, pytorch_schema

SHARDS = 8


def outputs() -> list[str]:
    return [name for n in range(SHARDS) for name in family_outputs(_stem(n))]


def families(path: Path) -> list[Family]:
    """Raises CodegenError for an operator that has no such kernel."""
    schema = pytorch_schema()
    entries = [entry for row in yaml.safe_load(path.read_text()) for entry in _entries(row, schema, path.name)]
    return [Family(_stem(n), [e for e in entries if _shard(e) == n]) for n in range(SHARDS)]


def _stem(shard: int) -> str:
    return f"aten_kernels_{shard}"


def _shard(entry: Entry) -> int:
    return shard_of(entry.op.partition(".")[0], SHARDS)


def _entries(row: dict, schema: Schema, table: str) -> list[Entry]:
    where = f"{table}: {row['key']}"
    kernels = schema.kernels(row["kernels_of"])
    if "shared_with" in row:
        others = schema.kernels(row["shared_with"])
        kernels = {op: kernel for op, kernel in kernels.items() if others.get(op) == kernel}
    named = row.get("ops", kernels)
    left_out = row.get("except", {})
    if unknown := [op for op in [*named, *left_out] if op not in kernels]:
        raise CodegenError(f"{where}: ATen has no such kernel of {', '.join(unknown)}.")
    return [Entry(op, kernels[op], False, where, row["key"], of_aten=True) for op in named if op not in left_out]
