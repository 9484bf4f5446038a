"""A group of one rank, as torchrun makes on a machine with one GPU: collectives are copies on the device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
LARGE = 1 << 22  # elements: the host would not be done with them when the call returns


@pytest.fixture
def alone(mps):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def done(work):
    """Completed as soon as it is called: nothing has gone to the host."""
    assert work.is_completed()
    work.wait()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_collectives_are_copies(alone, dtype):
    x = torch.randn(LARGE).to(dtype).to("mps")
    wanted = x.cpu()
    done(dist.all_reduce(x, async_op=True))
    done(dist.broadcast(x, 0, async_op=True))
    done(dist.reduce(x, 0, async_op=True))
    assert torch.equal(x.cpu(), wanted)
    for call in (
        lambda out: dist.all_gather([out], x, async_op=True),
        lambda out: dist.all_gather_into_tensor(out, x, async_op=True),
        lambda out: dist.gather(x, [out], 0, async_op=True),
        lambda out: dist.scatter(out, [x], 0, async_op=True),
        lambda out: dist.reduce_scatter(out, [x], async_op=True),
        lambda out: dist.reduce_scatter_tensor(out, x, async_op=True),
        lambda out: dist.all_to_all([out], [x], async_op=True),
        lambda out: dist.all_to_all_single(out, x, async_op=True),
        lambda out: dist.all_to_all_single(out, x, [LARGE], [LARGE], async_op=True),
    ):
        out = torch.zeros_like(x)
        done(call(out))
        assert torch.equal(out.cpu(), wanted)


def test_reductions_strides_and_versions(alone):
    x = torch.arange(12.0, device="mps").view(3, 4)
    dist.all_reduce(x.t()[1:3], op=dist.ReduceOp.AVG)
    dist.all_reduce(x[:, :2], op=dist._make_nccl_premul_sum(2.0))
    wanted = torch.arange(12.0).view(3, 4)
    wanted[:, :2] *= 2
    assert torch.equal(x.cpu(), wanted)
    part = torch.zeros(4, 3, device="mps").t()
    dist.all_gather([part], x)
    assert torch.equal(part.cpu(), wanted) and part._version == 0
    empty = torch.empty(0, device="mps")
    dist.all_reduce(empty)
    dist.all_gather([torch.empty(0, device="mps")], empty)
    dist.barrier()
    with pytest.raises(RuntimeError, match="its output holds 5"):
        dist.all_gather([torch.empty(5, device="mps")], torch.ones(4, device="mps"))


def test_data_parallel_is_the_module(alone):
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 5, device="mps")
    x = torch.randn(4, 6, device="mps")
    wanted = torch.autograd.grad(net(x).square().sum(), net.parameters())
    torch.nn.parallel.DistributedDataParallel(net)(x).square().sum().backward()
    for parameter, gradient in zip(net.parameters(), wanted):
        assert torch.equal(parameter.grad.cpu(), gradient.cpu())
