#!/usr/bin/env python3
"""Times of all_reduce of 1 MiB to 256 MiB of floats on mps, beside gloo's on CPU tensors and NCCL's.

    python benchmarks/distributed/all_reduce.py [--ranks 2] [--mib 1 16 64 256]

NCCL, with and without access to the other GPUs' memory (NCCL_P2P_DISABLE=1), is measured where ANYMPS_PEER_PYTHON names
a Python with a CUDA build of PyTorch. Milliseconds are the median over rounds that all ranks begin together; GB/s is
the tensor's size by that time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

ROUNDS = 7


def measure(device: str, sizes: list[int]) -> list[float]:
    """Seconds of an all_reduce for each size in MiB, in one rank of an initialised group."""
    import torch
    import torch.distributed as dist

    wait = getattr(torch, device).synchronize if device != "cpu" else lambda: None
    results = []
    for mib in sizes:
        x = torch.ones(mib << 18, device=device)
        times = []
        for _ in range(ROUNDS + 2):
            dist.barrier()
            wait()
            start = time.perf_counter()
            dist.all_reduce(x)
            wait()
            times.append(time.perf_counter() - start)
        assert x[0].item() == float(dist.get_world_size()) ** (ROUNDS + 2)
        results.append(statistics.median(times[2:]))
    return results


def rank_main(device: str, sizes: list[int]) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    seconds = measure(device, sizes)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    dist.destroy_process_group()


def launch(python: str, device: str, ranks: int, sizes: list[int], **env: str) -> list[float]:
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__]
    command += ["--rank-of", device, "--mib", *map(str, sizes)]
    given = peer.peer_environment(python if device == "cuda" else None)
    done = subprocess.run(command, capture_output=True, text=True, env={**given, **env})
    for line in done.stdout.splitlines():
        if line.startswith('{"seconds"'):
            return json.loads(line)["seconds"]
    raise SystemExit(f"{device} gave no result:\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return rank_main(options.rank_of, options.mib)
    rows = {"mps": launch(sys.executable, "mps", options.ranks, options.mib)}
    rows["gloo, CPU tensors"] = launch(sys.executable, "cpu", options.ranks, options.mib)
    if cuda := os.environ.get("ANYMPS_PEER_PYTHON"):
        rows["NCCL"] = launch(cuda, "cuda", options.ranks, options.mib)
        rows["NCCL_P2P_DISABLE=1"] = launch(cuda, "cuda", options.ranks, options.mib, NCCL_P2P_DISABLE="1")
    print(f"{options.ranks} ranks; ms (GB/s, times as long as mps)")
    print(f"{'':20}" + "".join(f"{mib:>10} MiB       " for mib in options.mib))
    for name, seconds in rows.items():
        cells = (
            f"{1e3 * s:8.2f} ({(mib << 20) / s / 1e9:5.1f}, {s / own:4.2f})"
            for mib, s, own in zip(options.mib, seconds, rows["mps"], strict=True)
        )
        print(f"{name:20}" + " ".join(cells))


if __name__ == "__main__":
    main()
