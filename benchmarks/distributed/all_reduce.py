#!/usr/bin/env python3
"""Times of collectives of floats between processes of one machine on mps, beside gloo's on CPU tensors and NCCL's.

    python benchmarks/distributed/all_reduce.py [--ranks 2] [--kib 64 1024 16384 65536 262144]
        [--collectives all_reduce all_gather reduce_scatter] [--alone] [--save]

NCCL, with and without access to the other GPUs' memory (NCCL_P2P_DISABLE=1), is measured where ANYMPS_PEER_PYTHON names
a Python with a CUDA build of PyTorch. A size is that of the whole tensor: the output of all_gather, the input of
reduce_scatter. Milliseconds are the median over rounds that all ranks begin together, the device's work included; GB/s
is the size by that time. Every round has values of its own, which are checked. ANYMPS_SHARED_MEMORY=host has the CPU
copy and add, ANYMPS_CHUNK_KIB=... changes the least piece of the pipeline.
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
import results  # noqa: E402

ROUNDS, WARMUP = 15, 3
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def round_of(name: str, elements: int, number: int, device: str):
    """A call of the collective, and what it writes: elements of one value, which is returned as well."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    own, total = float(number + rank), float(number * ranks + ranks * (ranks - 1) // 2)
    if name == "all_reduce":
        x = torch.full((elements,), own, device=device)
        return lambda: dist.all_reduce(x), x, total
    part = elements // ranks
    if name == "reduce_scatter":
        x, out = torch.full((part * ranks,), own, device=device), torch.empty(part, device=device)
        return lambda: dist.reduce_scatter_tensor(out, x), out, total
    x, out = torch.full((part,), own, device=device), torch.empty(part * ranks, device=device)
    return lambda: dist.all_gather_into_tensor(out, x), out[-part:], float(number + ranks - 1)


def measure(device: str, name: str, kib: int) -> float:
    """Seconds of a collective in one rank of an initialised group."""
    import torch
    import torch.distributed as dist

    wait = getattr(torch, device).synchronize if device != "cpu" else lambda: None
    times = []
    for number in range(ROUNDS + WARMUP):
        call, out, expected = round_of(name, kib * 256, number, device)
        wait()
        dist.barrier()
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
        assert bool((out == expected).all()), f"{name} of {kib} KiB, round {number}: {out[:4].tolist()} {expected}"
    return statistics.median(times[WARMUP:])


def rank_main(device: str, options) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    for name in options.collectives:
        for kib in options.kib:
            # gloo refuses reduce_scatter_tensor of some builds: a gap in the table then.
            try:
                seconds = measure(device, name, kib)
            except RuntimeError as error:
                seconds = None
                print(f"{device}, {name}: {str(error).splitlines()[0]}", file=sys.stderr)
            if dist.get_rank() == 0:
                print(json.dumps({"collective": name, "kib": kib, "seconds": seconds}), flush=True)
    if dist.get_rank() == 0:
        print(json.dumps({"facts": results.device_facts(device)}), flush=True)
    dist.destroy_process_group()


def launch(python: str, device: str, options, **env: str) -> tuple[dict, dict]:
    """Seconds by collective and KiB, and the facts of rank 0's device."""
    command = [python, *peer.launcher(options.ranks), __file__]
    command += ["--rank-of", device, "--kib", *map(str, options.kib), "--collectives", *options.collectives]
    given = peer.peer_environment(python if device == "cuda" else None)
    done = subprocess.run(command, capture_output=True, text=True, env={**given, **env})
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('{"collective"', '{"facts"'))]
    if len(lines) < len(options.kib) * len(options.collectives) + 1:
        raise SystemExit(f"{device} gave no result:\n{done.stdout}{done.stderr}")
    return {(line["collective"], line["kib"]): line["seconds"] for line in lines[:-1]}, lines[-1]["facts"]


def size(kib: int) -> str:
    return f"{kib // 1024} MiB" if kib % 1024 == 0 else f"{kib} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kib", type=int, nargs="+", default=[64, 1024, 16384, 65536, 262144])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    parser.add_argument("--alone", action="store_true", help="mps without its peers")
    parser.add_argument("--save", action="store_true", help="write a result file (benchmarks/results.py)")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return rank_main(options.rank_of, options)
    columns, theirs = {}, None
    columns["mps"], ours = launch(sys.executable, "mps", options)
    if not options.alone:
        columns["gloo on CPU tensors"], _ = launch(sys.executable, "cpu", options)
    if not options.alone and (cuda := os.environ.get("ANYMPS_PEER_PYTHON")):
        columns["NCCL"], theirs = launch(cuda, "cuda", options)
        columns["NCCL without peer access"], _ = launch(cuda, "cuda", options, NCCL_P2P_DISABLE="1")
    print(f"{options.ranks} ranks; ms (GB/s, times as long as mps)")
    print(f"{'':26}" + "".join(f"{name:>26}" for name in columns))
    for key in columns["mps"]:
        own = columns["mps"][key]
        cells = ""
        for seconds in (column[key] for column in columns.values()):
            text = "-"
            if seconds and own:
                text = f"{1e3 * seconds:.3f} ({key[1] * 1024 / seconds / 1e9:.1f}, {seconds / own:.2f})"
            cells += f"{text:>26}"
        print(f"{key[0] + ', ' + size(key[1]):26}{cells}")
    if options.save:
        rows = {
            f"{name}, {size(kib)}": [seconds and 1e3 * seconds for seconds in (c[name, kib] for c in columns.values())]
            for name, kib in columns["mps"]
        }
        title = f"Collectives of float32 by {options.ranks} processes of one host"
        results.save(ours, theirs, title, [f"{name}, ms" for name in columns], rows)


if __name__ == "__main__":
    main()
