"""Many steps of four ranks leave nothing behind: pytest tests/distributed/test_soak.py --soak-steps 2000."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks


def resident():
    """MiB of this process but for those that it shares, and its open files."""
    with open("/proc/self/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    return kib / 1024, len(os.listdir("/proc/self/fd"))


def steps(count, seed):
    """Collectives of all kinds and sizes, of which some are waited for late and some never; checks what they give."""
    generator = torch.Generator().manual_seed(seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    late = []
    for step in range(count):
        n = ranks * int(torch.randint(1, 40_000, (), generator=generator))
        x = torch.full((n,), float(step % 7 + rank), device="mps")
        late.append((dist.all_reduce(x, async_op=True), x, float(ranks * (step % 7) + ranks * (ranks - 1) // 2)))
        part = torch.empty(n // ranks, device="mps")
        dist.reduce_scatter_tensor(part, torch.ones(n, device="mps"))
        whole = torch.empty(n, device="mps", dtype=torch.bfloat16)
        dist.all_gather_into_tensor(whole, part.to(torch.bfloat16))
        told = torch.full((3,), rank, device="mps")
        dist.broadcast(told, step % ranks)
        if step % 5 == 0:
            work, y, expected = late[int(torch.randint(len(late), (), generator=generator))]
            work.wait()
            assert (y == expected).all(), step
            assert (whole == ranks).all() and (told == step % ranks).all(), step
            late.clear()
    torch.mps.synchronize()
    return resident()


@pytest.mark.parametrize("way", ["host", "device"])
def test_four_ranks_do_not_grow(pytestconfig, way):
    count = pytestconfig.getoption("--soak-steps")
    with Ranks(4, env={"ANYMPS_SHARED_MEMORY": way}) as ranks:
        ranks.run(steps, max(20, count // 4), 0, patience=1200)
        first = ranks.run(steps, count // 4, 1, patience=1200)
        last = ranks.run(steps, count, 2, patience=2400)
    for (before, files), (after, files_after) in zip(first, last, strict=True):
        assert after < before + 16 and files_after <= files, (first, last)
