"""Messages between two ranks beside collectives and kernels: what they send and where they write keeps its order."""

from __future__ import annotations

import os
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

LATE = 0.2  # seconds, in which what starts too early has ended
PATIENCE = 20  # seconds, with what comes by itself


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


def in_the_order_of_calls(size: int):
    """A batch behind a collective that writes what it sends, and one before a collective of what it receives."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    x, y = torch.full((size,), 1.0 + rank, device="mps"), torch.full((size,), 7.0, device="mps")
    work = dist.all_reduce(x, async_op=True)
    works = exchange(x, y, peer)
    dist.all_reduce(y)
    sums = y.unique().tolist()
    for each in [work, *works]:
        each.wait()
    x.fill_(1.0 + rank)
    works = exchange(x, y, peer)
    dist.all_reduce(x)  # is not sent
    for each in works:
        each.wait()
    return sums, x.unique().tolist(), y.unique().tolist()


def exchange(x, y, peer):
    return dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)])


@pytest.mark.parametrize("size", [100, 1 << 18])
def test_in_the_order_of_calls(ranks, size):
    first, second = ranks.run(in_the_order_of_calls, size)
    assert first == ([6.0], [3.0], [2.0]) and second == ([6.0], [3.0], [1.0])


def to_the_other(x, y, tag: int):
    return dist.isend(x, 1, tag=tag) if dist.get_rank() == 0 else dist.irecv(y, 0, tag=tag)


def works_of_messages():
    """What NCCL's Works tell before and after wait(), where gloo's tell nothing or nothing true."""
    rank, found = dist.get_rank(), []
    x, y = torch.arange(6.0, device="mps").view(2, 3), torch.zeros(3, 2, device="mps").t()
    work = to_the_other(x, y, 1)
    end = time.monotonic() + PATIENCE
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    found.append(work.is_completed() and work.wait())
    works = [to_the_other(x, y, tag) for tag in (3, 2)]
    doubled = [work.get_future().then(lambda done: done.value()[0] * 2) for work in reversed(works)]
    found += [future.wait().tolist() for future in doubled]
    work.wait()
    found.append(work.get_future().done())
    work = to_the_other(x + 1, y, 4)
    work.block_current_stream()
    found.append((y if rank else x + 1).tolist())
    work = dist.all_reduce(x, async_op=True)
    work.block_current_stream()
    return [*found, (x / 2).tolist()]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_works_of_messages(ranks):
    rows = torch.arange(6.0).view(2, 3)
    expected = [True, *[(rows * 2).tolist()] * 2, True, (rows + 1).tolist(), rows.tolist()]
    assert ranks.run(works_of_messages) == [expected] * 2


def values(x):
    """The least and the most: of many elements quicker than unique() by a software driver."""
    return [each.item() for each in torch.aminmax(x)]


def nobody_holds_the_works(size: int):
    """Sends of temporary tensors, and a receipt, whose Works go at once."""
    if dist.get_rank() == 0:
        for number in range(4):
            dist.isend(torch.full((size,), float(number), device="mps"), 1, tag=number)
        other = torch.full((size,), -1.0, device="mps")
        dist.irecv(other, 1, tag=9)
        dist.recv(torch.zeros(1, device="mps"), 1, tag=10)
        end = time.monotonic() + PATIENCE
        while values(other) != [5.0, 5.0] and time.monotonic() < end:
            time.sleep(0.001)
        return values(other)
    time.sleep(LATE)
    found = []
    for number in reversed(range(4)):
        x = torch.empty(size, device="mps")
        dist.recv(x, 0, tag=number)
        found += values(x)
    dist.send(torch.full((size,), 5.0, device="mps"), 0, tag=9)
    dist.send(torch.zeros(1, device="mps"), 0, tag=10)
    return found


@pytest.mark.parametrize("size", [5, 1 << 20])
def test_nobody_holds_the_works(ranks, size):
    assert ranks.run(nobody_holds_the_works, size) == [[5.0, 5.0], [3.0, 3.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]]
