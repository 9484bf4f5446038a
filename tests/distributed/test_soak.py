"""Many steps of four ranks leave nothing behind: pytest -m nightly tests/distributed/test_soak.py --soak-steps N."""

from __future__ import annotations

import gc
import os

import pytest
import torch
import torch.distributed as dist
import training
from ranks import Ranks

pytestmark = pytest.mark.nightly
MIB = 1 << 20
ROOM = 16  # MiB, of caches that are not full after the first steps


def held():
    """What this process holds: MiB of memory of its own, of the device and shared, and numbers of files and maps."""
    with open("/proc/self/status") as status:
        kib = {name: int(value.split()[0]) for name, value in (line.split(":") for line in status) if "Rss" in name}
    with open("/proc/self/maps") as maps:
        shared = sum("/dev/shm/" in line or "anymps_collectives" in line for line in maps)
    return {
        "RssAnon": kib["RssAnon"] / 1024,
        "RssShmem": kib["RssShmem"] / 1024,
        "allocated": torch.accelerator.memory_allocated() / MIB,
        "reserved": torch.accelerator.memory_reserved() / MIB,
        "files": len(os.listdir("/proc/self/fd")),
        "shared maps": shared,
        "names in /dev/shm": sum(str(os.getpid()) in name for name in os.listdir("/dev/shm")),
    }


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
    late.clear()
    return held()


def training_steps(count, seed):
    """Of DistributedDataParallel, on batches of changing sizes: the ranks keep the same weights, and the loss falls."""
    model = torch.nn.parallel.DistributedDataParallel(training.net(), bucket_cap_mb=0.02)
    optimizer = training.sgd(model.parameters())
    ids = next(training.batches())
    losses = []
    for step in range(count):
        rows = ids[: 4 + (step + dist.get_rank()) % 4]
        loss = training.loss_of(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            losses.append(loss.item())
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_of_them = torch.empty(dist.get_world_size(), len(own), device="mps")
    dist.all_gather_into_tensor(all_of_them, own)
    assert (all_of_them == own).all() and losses[-1] < losses[0], losses
    del model, optimizer, loss, own, all_of_them
    gc.collect()
    torch.mps.synchronize()
    return held()


@pytest.mark.parametrize(("kind", "way"), [(steps, "host"), (steps, "device"), (training_steps, "device")])
def test_four_ranks_do_not_grow(pytestconfig, kind, way):
    count = pytestconfig.getoption("--soak-steps")
    with Ranks(4, env={"ANYMPS_SHARED_MEMORY": way}) as ranks:
        ranks.run(kind, max(20, count // 4), 0, patience=1200)
        first = ranks.run(kind, max(20, count // 4), 1, patience=1200)
        last = ranks.run(kind, count, 2, patience=2400)
    for before, after in zip(first, last, strict=True):
        grown = {name: after[name] - before[name] for name in before}
        assert all(grown[name] < (ROOM if isinstance(before[name], float) else 1) for name in grown), (first, last)
