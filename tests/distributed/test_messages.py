"""Messages between two ranks beside collectives and kernels: what they send and where they write keeps its order."""

from __future__ import annotations

import os
import time
from unittest import mock

import torch
import torch.distributed as dist
from ranks import Ranks

LATE = 0.2  # seconds, in which what starts too early has ended


def behind_a_collective_of_another_group():
    """Rank 2 comes late, and rank 1 is ready for what rank 0's stream sends it behind the collective with rank 2."""
    rank, side = dist.get_rank(), torch.mps.Stream()
    late = dist.new_group([0, 2])
    with mock.patch.dict(os.environ, {"ANYMPS_SHARED_MEMORY": "0"}):
        hosts = dist.new_group([0, 1])  # by gloo, as between machines
    found = []
    for collective in (False, True):
        x = torch.full((1000,), 1.0 + rank, device="mps")
        y = [torch.zeros_like(x) for _ in range(2)]
        dist.barrier()
        side.wait_stream(torch.mps.current_stream())
        with torch.mps.stream(side):
            if rank == 2:
                time.sleep(LATE)
            if rank != 1:
                dist.all_reduce(x, group=late)
            if rank != 2 and collective:
                dist.all_gather(y, x, group=hosts)
            elif rank != 2:
                dist.send(x, 1) if rank == 0 else dist.recv(y[0], 0)
        side.synchronize()
        found.append(y[0].unique().tolist())
    return found


def test_streams_send_what_they_wait_for():
    with Ranks(3) as three:
        assert three.run(behind_a_collective_of_another_group)[1] == [[4.0]] * 2
