"""Large collectives between machines go in slices, so that the device copies one while another travels."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

SLICE = 8 << 20  # bytes: csrc/distributed/running_exchange.cpp

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module", params=("0", "1"), ids=("in place", "staging"))
def ranks(request):
    with Ranks(2, env={"ANYMPS_SHARED_MEMORY": "0", "ANYMPS_STAGING": request.param}) as pool:
        yield pool


def numbers(count, dtype, rank):
    return ((torch.arange(count) * (rank + 3)) % 101 - 50).to(dtype)


def sums(elements, dtypes):
    for dtype in dtypes:
        x = numbers(elements, dtype, dist.get_rank()).to("mps")
        work = dist.all_reduce(x, async_op=True)
        x2 = numbers(1000, dtype, dist.get_rank()).to("mps")
        dist.all_reduce(x2)  # beside it
        work.wait()
        y = x + 0  # what follows on the stream
        wanted = numbers(elements, dtype, 0) + numbers(elements, dtype, 1)
        assert torch.equal(y.cpu(), wanted), dtype
        assert torch.equal(x2.cpu(), numbers(1000, dtype, 0) + numbers(1000, dtype, 1))


@pytest.mark.parametrize("over", [1, 7])
def test_sums_of_any_number_of_elements(ranks, over):
    ranks.run(sums, 3 * SLICE // 4 + over, (torch.float32, torch.bfloat16, torch.uint8))


def lists_and_strides():
    rank = dist.get_rank()
    large = numbers(3 * SLICE // 4, torch.float32, rank).to("mps")
    strided = numbers(3 * SLICE // 4, torch.float32, rank).view(-1, 2).to("mps").t()[:1]
    alone = numbers(1, torch.float32, rank).to("mps")
    with dist._coalescing_manager(device=torch.device("mps")):
        for x in (large, strided, alone):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
    future = dist.all_reduce_coalesced([large, alone], op=dist.ReduceOp.SUM, async_op=True)
    assert future.wait()[0].shape == large.shape
    both = torch.maximum(numbers(3 * SLICE // 4, torch.float32, 0), numbers(3 * SLICE // 4, torch.float32, 1))
    assert torch.equal(large.cpu(), 2 * both) and torch.equal(strided.cpu().flatten(), both[::2])
    assert alone.item() == 2 * both[0]


def test_lists_and_strides(ranks):
    ranks.run(lists_and_strides)


def moved():
    x = torch.full((2 * SLICE + 3,), float(dist.get_rank() + 1), device="mps").half()
    x[-1] = 7 * (dist.get_rank() + 1)
    dist.broadcast(x, 1)
    assert (x[:-1] == 2).all() and x[-1] == 14


def test_broadcast(ranks):
    ranks.run(moved)


def average():
    x = torch.full((2 * SLICE,), float(dist.get_rank()), device="mps")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert (x == 0.5).all()
    with pytest.raises(RuntimeError):
        dist.all_reduce(x.expand(2, -1))
    dist.all_reduce(x)
    assert (x == 1).all()


def test_averages_and_errors(ranks):
    ranks.run(average)
