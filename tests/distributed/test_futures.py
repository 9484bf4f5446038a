"""What the Works of collectives on mps hold: gloo's results and Futures, and NCCL's where gloo has none or others."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
ROWS = [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]  # what the ranks give
SUM = [10.0, 12.0, 14.0]


def ramp(device, *shape):
    values = torch.arange(float(torch.Size(shape).numel())).view(shape) + 10 * dist.get_rank()
    return values.to(device)


def calls(device):
    """Collectives of two ranks by name, asked of the group itself where torch.distributed gives no Work."""
    rank, group = dist.get_rank(), dist.group.WORLD

    def x(*shape):
        return ramp(device, *shape)

    def of_root():
        return [x(3), x(3)] if rank == 0 else None

    return {
        "all_reduce": lambda: dist.all_reduce(x(3), async_op=True),
        "allreduce_coalesced": lambda: group.allreduce_coalesced([x(3), x(2)]),
        "broadcast": lambda: dist.broadcast(x(3), 0, async_op=True),
        "gather": lambda: dist.gather(x(3), of_root(), async_op=True),
        "scatter": lambda: dist.scatter(x(3), of_root(), async_op=True),
        "all_to_all": lambda: dist.all_to_all([x(2), x(2)], [x(2), x(2)], async_op=True),
        "all_to_all_single": lambda: dist.all_to_all_single(x(4), x(4), async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
    }


def plain(value):
    return [plain(each) for each in value] if isinstance(value, list) else value.tolist()


def held(device, name, early):
    work = calls(device)[name]()
    future = work.get_future() if early else None
    work.wait()
    future = future or work.get_future()
    return plain(future.wait()), plain(work.result())


@pytest.mark.parametrize("name", ["all_reduce", "allreduce_coalesced", "broadcast", "gather", "scatter"])
def test_as_gloo(ranks, name):
    assert ranks.run(held, "mps", name, True) == ranks.run(held, "cpu", name, True)
    assert ranks.run(held, "mps", name, False) == ranks.run(held, "cpu", name, False)


@pytest.mark.parametrize("name", ["all_to_all", "all_to_all_single", "barrier"])
def test_as_gloo_of_all(ranks, name):
    assert ranks.run(held, "mps", name, True) == ranks.run(held, "cpu", name, True)


def as_nccl(early):
    """Each Future's value where gloo's differs from NCCL's, or gloo has none."""
    group, x = dist.group.WORLD, ramp("mps", 3)
    lists = [[torch.empty(3, device="mps"), torch.empty(2, device="mps")] for _ in range(2)]
    works = [
        dist.all_gather([torch.empty(3, device="mps") for _ in range(2)], x, async_op=True),
        dist.all_gather([torch.empty(1, 3, device="mps"), torch.empty(3, device="mps")], x, async_op=True),
        dist.all_gather_into_tensor(torch.empty(6, device="mps"), x, async_op=True),
        group.allgather_into_tensor_coalesced([torch.empty(6, device="mps") for _ in range(2)], [x, x + 1]),
        group.allgather_coalesced(lists, [x, x[:2]]),
        dist.reduce_scatter(torch.empty(3, device="mps"), [x, x], async_op=True),
        dist.reduce_scatter_tensor(torch.empty(3, device="mps"), torch.cat([x, x]), async_op=True),
        group.reduce_scatter_tensor_coalesced([torch.empty_like(x) for _ in range(2)], [torch.cat([x, x])] * 2),
    ]
    futures = [work.get_future() for work in works] if early else None
    for work in works:
        work.wait()
    futures = futures or [work.get_future() for work in works]
    done = all(future.done() for future in futures)
    devices = {tensor.device.type for tensor in futures[0].value()}
    return done, devices, [plain(future.wait()) for future in futures]


@pytest.mark.parametrize("early", [True, False])
def test_as_nccl(ranks, early):
    flat = sum(ROWS, [])
    expected = [
        [ROWS],
        [[ROWS[0]], ROWS[1]],
        [flat],
        [flat, [value + 1 for value in flat]],
        [[row, row[:2]] for row in ROWS],
        [SUM],
        [SUM],
        [SUM, SUM],
    ]
    for done, devices, values in ranks.run(as_nccl, early):
        assert done and devices == {"mps"}
        assert values == expected


def outcomes():
    """What get_future_result() tells of collectives, messages and batches, asked early and late; and a callback."""
    rank, x, y = dist.get_rank(), ramp("mps", 3), torch.empty(3, device="mps")
    batch = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    works = [dist.all_reduce(x, async_op=True), *dist.batch_isend_irecv(batch)]
    works.append(dist.group.WORLD.allgather_coalesced([[torch.empty_like(x)] for _ in range(2)], [x]))
    early = [work.get_future_result() for work in works]
    for work in works:
        work.wait()
    late = [work.get_future_result() for work in works]
    told = early[0].then(lambda future: future.value() + 10)
    return [future.wait() for future in (*early, *late, told)]


def test_outcomes(ranks):
    for found in ranks.run(outcomes):
        assert found == [0] * (len(found) - 1) + [10] and len(found) >= 7


def callbacks_of_all_gather(rounds):
    """Chains of callbacks, as those of DistributedDataParallel's hooks, while no one holds the Work."""
    values = []
    for _ in range(rounds):
        x = ramp("mps", 3)
        future = dist.all_gather([torch.empty_like(x) for _ in range(2)], x, async_op=True).get_future()
        values.append(future.then(lambda done: done.value()[0].sum(0)).then(lambda done: done.value() * 2))
    return {tuple(value.wait().tolist()) for value in values}


def test_callbacks_of_all_gather(ranks):
    assert ranks.run(callbacks_of_all_gather, 20) == [{tuple(2 * value for value in SUM)}] * 2


def quantized(name):
    """The largest error of a mean gradient, by the range of the gradients."""
    from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

    torch.manual_seed(0)
    net = torch.nn.Linear(40, 30, device="mps")
    inputs = torch.randn(2, 8, 40, device="mps")
    parameters = list(net.parameters())
    wanted = torch.autograd.grad(sum(net(half).square().sum() for half in inputs) / 2, parameters)
    model = torch.nn.parallel.DistributedDataParallel(net)
    model.register_comm_hook(None, getattr(quantization_hooks, name))
    model(inputs[dist.get_rank()]).square().sum().backward()
    found, wanted = (torch.cat([g.flatten() for g in gs]).cpu() for gs in ([p.grad for p in parameters], wanted))
    return ((found - wanted).abs().max() / (wanted.max() - wanted.min())).item()


@pytest.mark.parametrize("name", ["quantization_pertensor_hook", "quantization_perchannel_hook"])
def test_quantized_gradients(pair, name):
    """Steps of 8 bits over the range of a rank's gradients, which is larger than that of their mean."""
    assert max(pair.run(quantized, name)) < 0.006
