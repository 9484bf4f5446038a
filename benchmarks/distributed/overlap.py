#!/usr/bin/env python3
"""How much of an all_reduce on mps hides behind what the device computes meanwhile.

    python benchmarks/distributed/overlap.py [--ranks 2] [--mib 26] [--count 8] [--side 4096] [--products 40]

Milliseconds of `products` float32 products of side x side, of `count` all_reduces of `mib` MiB one after the other, and
of both where the collectives are called first and nobody waits for them until the products are recorded. Overlap is
the part of the shorter one that both together do not add to the longer one. ANYMPS_SIDE_QUEUES=compute keeps copies to
queues that compute, =family all to the family of the stream's queue.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

ROUNDS, WARMUP = 7, 2


def rank_main(options) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.full((options.side, options.side), 1.0 / options.side, device="mps")
    buckets = [torch.ones(options.mib << 18, device="mps") for _ in range(options.count)]

    def products():
        y = x
        for _ in range(options.products):
            y = y @ x
        return y

    def collectives():
        return [dist.all_reduce(bucket, op=dist.ReduceOp.AVG, async_op=True) for bucket in buckets]

    def both():
        works = collectives()
        products()
        return works

    def milliseconds(call) -> float:
        times = []
        for _ in range(ROUNDS + WARMUP):
            torch.mps.synchronize()
            dist.barrier()
            start = time.perf_counter()
            works = call()
            for work in works if isinstance(works, list) else ():
                work.wait()
            torch.mps.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times[WARMUP:])

    alone, moved, together = milliseconds(products), milliseconds(collectives), milliseconds(both)
    if dist.get_rank() == 0:
        bytes_moved = options.count * (options.mib << 20)
        print(f"queues: {os.environ.get('ANYMPS_SIDE_QUEUES') or 'all'}")
        print(f"products {alone:.2f} ms, all_reduces {moved:.2f} ms ({bytes_moved / moved / 1e6:.1f} GB/s)")
        print(f"both {together:.2f} ms: overlap {(alone + moved - together) / min(alone, moved):.2f}", flush=True)
    assert all(bool((bucket == 1).all()) for bucket in buckets)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=26)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--products", type=int, default=40)
    options = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        return rank_main(options)
    raise SystemExit(subprocess.run([sys.executable, *peer.launcher(options.ranks), *sys.argv]).returncode)


if __name__ == "__main__":
    main()
