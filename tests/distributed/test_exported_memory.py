"""Data in memory that the ranks' devices export to each other: as where drivers do not take the processes' memory."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

EXPORTED = ": by the device, in memory that the devices export to each other"
OF_PROCESSES = {
    "device": ": by the device, in memory of the processes",
    "host": ": by the CPU, in memory of the processes",
}


@pytest.fixture(scope="module")
def three():
    # One device: two of them may not take each other's memory.
    with Ranks(3, timeout=240, env={"ANYMPS_LOG": "plan", "ANYMPS_DEVICE": "0"}) as pool:
        yield pool


def sums_of_new_group(wanted):
    """Of a group whose rank r has ANYMPS_SHARED_MEMORY=wanted[r]: what the log says, and whether sums are right."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ["ANYMPS_SHARED_MEMORY"] = wanted[rank]
    group = dist.new_group()
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            right = []
            for count in (7, 100_003, 3_000_001):  # in the stream, in one chunk, in several
                for step in range(3):
                    x = torch.arange(count, dtype=torch.float32, device="mps") * (rank + 1) + step
                    dist.all_reduce(x, group=group)
                    total = ranks * (ranks + 1) // 2
                    right.append(torch.equal(x.cpu(), torch.arange(count, dtype=torch.float32) * total + ranks * step))
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        lines = [line for line in file.read().decode().splitlines() if line.startswith("ANYMPS_LOG plan: collectives ")]
    dist.destroy_process_group(group)
    return [line.removeprefix(f"ANYMPS_LOG plan: collectives rank {rank} of {ranks}") for line in lines], all(right)


def sums_of_two_users(folder):
    """The same of a group whose last rank is another user's: nobody's."""
    if dist.get_rank() == dist.get_world_size() - 1:
        for path in (folder, os.path.join(folder, "store")):
            os.chmod(path, 0o777)
        os.setresuid(65534, 65534, 65534)
    dist.barrier()
    return sums_of_new_group(["export"] * dist.get_world_size())


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
def test_another_users_rank_shares_no_memory(mps):
    with Ranks(2, timeout=240, env={"ANYMPS_LOG": "plan"}) as pool:
        for lines, right in pool.run(sums_of_two_users, pool._folder.name):
            assert right and lines == []  # by gloo, of which the log says nothing


def test_all_ranks_export(three):
    assert three.run(sums_of_new_group, ["export"] * 3) == [([EXPORTED], True)] * 3


def test_one_rank_that_does_not_export_is_enough(three):
    """The others do as they would without it."""
    ways = [OF_PROCESSES["device"], OF_PROCESSES["host"], OF_PROCESSES["host"]]
    assert three.run(sums_of_new_group, ["device", "export", "host"]) == [([way], True) for way in ways]
