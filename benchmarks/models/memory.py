"""Peak memory of training steps of the zoo, in GiB, beside the peer's: what is in tensors (allocated) against the same,
and what is taken from the driver (reserved) against the same.

    ANYMPS_PEER_PYTHON=python3 python benchmarks/models/memory.py [--only "ResNet50|GPT"] [--save]

`--only` finds networks by a regular expression. A network that fails is a sentence on stderr and has no figures. With
`--device mps` it also runs above a driver that runs nothing (network_kernels.py), whose memory is as that of a GPU.
"""

import gc
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
import zoo_step  # noqa: E402

STEPS = 3
GOAL = 1.1
KINDS = ("tensors", "reserved")


def peaks(network, device: str, amp: bool) -> list[float]:
    """Peaks of allocated and reserved memory over a few steps, with nothing of the steps before."""
    import torch

    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(device):
        task = network.builder(False)
    step = zoo_step.make_step(task, device, True, amp)
    for _ in range(STEPS):
        step()
    torch.accelerator.synchronize()
    return [torch.accelerator.max_memory_allocated() / 2**30, torch.accelerator.max_memory_reserved() / 2**30]


def measure(device: str) -> dict[str, float]:
    from zoo_networks import ZOO

    only = re.compile(os.environ.get("ANYMPS_BENCHMARK_ONLY", ""))
    figures = {}
    for network in ZOO:
        if not only.search(network.name):
            continue
        for amp in (False, True):
            key = f"{network.name}, {'AMP bf16' if amp else 'fp32'}"
            try:
                for kind, peak in zip(KINDS, peaks(network, device, amp)):
                    figures[f"{key}, {kind}"] = peak
                print(key, *(f"{figures[f'{key}, {kind}']:.3f}" for kind in KINDS), file=sys.stderr, flush=True)
            except Exception as error:  # of any network: the others go on
                print(f"{key}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
    return figures


def table(ours: dict, theirs: dict, name: str) -> tuple[list[str], dict[str, list]]:
    """Prints all peaks with the ratio of ours to theirs, and how many are over the goal."""
    columns = ["mps, GiB", f"{name}, GiB", f"memory of mps / {name}"]
    print(f"| what | {' | '.join(columns)} |\n|---|---|---|---|")
    rows = {}
    for key, mine in ours["figures"].items():
        other = theirs["figures"].get(key)
        rows[key] = [mine, other, mine / other if other else None]
        print(f"| {key} | {' | '.join('-' if f is None else f'{f:.3f}' for f in rows[key])} |")
    for kind in KINDS:
        ratios = {key: row[2] for key, row in rows.items() if key.endswith(kind) and row[2]}
        over = sorted((key for key in ratios if ratios[key] > GOAL), key=lambda key: -ratios[key])
        print(f"\n{kind}: {len(over)} of {len(ratios)} need more than {GOAL} times the peer's memory")
        print(*(f"- {key}: {ratios[key]:.2f}" for key in over), sep="\n")
    return columns, rows


if __name__ == "__main__":
    peer.run(measure, "GiB", "Peak memory of training", table=table)
