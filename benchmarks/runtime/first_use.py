"""What the first use of a kernel costs: pipeline and driver's compiler, without any cache on disk.

Calls every operator of PyTorch's op_db once, and again, in one process; the difference, in time of the CPU, is that of
the pipelines that the first call made. Prints the operators whose pipelines cost more than the limit, how many they
made, and the mean of all.

    python benchmarks/runtime/first_use.py [limit in ms, 60] [part of an operator's name]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["MESA_SHADER_CACHE_DISABLE"] = "true"
os.environ["ANYMPS_CACHE_DIR"] = tempfile.mkdtemp()
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import torch  # noqa: E402
from op_db_support import DEVICE, OPS, Call, chosen_samples  # noqa: E402


def seconds(op, sample) -> float:
    call = Call.of(op, sample, DEVICE)
    torch.mps.synchronize()
    begin = time.process_time()
    call.run(op, sample)
    torch.mps.synchronize()
    return time.process_time() - begin


def main() -> None:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    rows = []
    for name, op in OPS.items():
        if wanted not in name or not op.supports_dtype(torch.float32, "cpu"):
            continue
        for sample in chosen_samples(op, 1, torch.float32, requires_grad=False):
            before = torch.ops.anymps.pipeline_count()
            try:
                first, again = seconds(op, sample), seconds(op, sample)
            except Exception:  # noqa: BLE001 - tests/op_db/test_op_db.py looks after these
                continue
            made = torch.ops.anymps.pipeline_count() - before
            if made:
                rows.append((1e3 * (first - again), made))
                if rows[-1][0] > limit * made:
                    print(f"| {name} | {made} | {rows[-1][0] / made:.0f} |", flush=True)
    made = sum(count for _, count in rows)
    mean = sum(cost for cost, _ in rows) / max(1, made)
    print(f"{torch.backends.mps.get_name()}: {made} pipelines of {len(rows)} operators, {mean:.1f} ms each on average")


if __name__ == "__main__":
    main()
