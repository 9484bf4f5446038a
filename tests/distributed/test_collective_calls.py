"""How collectives of tensors on mps are called: order, futures, groups, strides, coalescing and errors."""

from __future__ import annotations

import contextlib
import os
import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def strided():
    x = torch.arange(12.0, device="mps").view(3, 4)
    dist.all_reduce(x.t()[1:3])
    y = torch.zeros(4, 3, device="mps").t()
    dist.broadcast(y if dist.get_rank() else torch.arange(12.0, device="mps").view(3, 4), 0)
    parts = torch.zeros(2, 4, device="mps").unbind(1)[:2]
    dist.all_gather(list(parts), torch.tensor([1.0, 2.0], device="mps") + dist.get_rank())
    halves = torch.zeros(6, device="mps").split(3)  # views of split refuse to be written by autograd's copy_
    dist.all_gather(list(halves), torch.ones(3, device="mps"))
    return x.tolist(), y.tolist(), [p.tolist() for p in parts], [h.tolist() for h in halves]


def test_tensors_of_any_strides(ranks):
    x = torch.arange(12.0).view(3, 4)
    x[:, 1:3] *= 2
    results = ranks.run(strided)
    assert results[0][0] == results[1][0] == x.tolist()
    assert results[1][1] == torch.arange(12.0).view(3, 4).tolist()
    assert results[0][2] == [[1.0, 2.0], [2.0, 3.0]]
    assert results[0][3] == [[1.0] * 3] * 2


def in_order():
    """Collectives take what was recorded before them and are seen by what is recorded after, with no wait between."""
    x = torch.ones(1 << 14, device="mps")
    works = []
    for _ in range(10):
        x = x * 1.0
        x.add_(1)
        works.append(dist.all_reduce(x, async_op=True))
        works[-1].wait()
        x = x / 2
    values = x.unique().tolist()
    assert all(work.is_completed() and work.is_success() for work in works)
    return values


def test_order_with_recorded_commands(ranks):
    assert ranks.run(in_order) == [[11.0]] * 2


def chained(count):
    """Collectives that take what earlier ones give, where nobody waits but for the last one, as by NCCL's stream."""
    ones, rank = torch.ones(count, device="mps"), dist.get_rank()
    x, strided = ones + rank, (torch.ones(count, 2, device="mps") + rank).t()[:, : count // 2]
    gathered, sums = torch.empty(2 * count, device="mps"), torch.empty(count, device="mps")
    last = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    dist.broadcast(strided, 1, async_op=True)
    last.append(dist.all_reduce(strided, async_op=True))
    dist.all_gather_into_tensor(gathered, ones + rank, async_op=True)
    dist.reduce_scatter_tensor(sums, gathered, async_op=True)
    last.append(dist.all_reduce(sums, async_op=True))
    last.append(dist.all_to_all_single(gathered, torch.cat([ones, ones + 4]), async_op=True))
    for work in last[2:]:
        work.wait()
    return [tensor.unique().tolist() for tensor in (x, strided, sums, gathered)]


@pytest.mark.parametrize("count", [3, 20000, 300000])
def test_order_of_collectives(ranks, count):
    found = ranks.run(chained, count)
    assert found == [[[12.0], [4.0], [6.0], [1.0 + 4.0 * rank]] for rank in range(2)]


def waited_for_by_the_last(count):
    """A large collective and a small one on tensors of their own, where the last one's wait() stands for both."""
    large, small = (torch.full((n,), 1.0 + dist.get_rank(), device="mps") for n in (count, 1))
    dist.all_reduce(large, async_op=True)
    dist.all_reduce(small, async_op=True).wait()
    return large[::4097].tolist() + small.tolist()


def test_wait_for_the_last_waits_for_all(ranks):
    for found in ranks.run(waited_for_by_the_last, 1 << 22):
        assert set(found) == {3.0}


def futures():
    x = torch.full((3,), 1.0 + dist.get_rank(), device="mps")
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    result = future.wait()
    assert result.device.type == "mps"
    version = x._version
    dist.all_reduce(x)
    assert x._version == version
    return result.tolist()


def test_futures_hold_device_tensors(ranks):
    assert ranks.run(futures) == [[6.0] * 3] * 2


def future_after_wait():
    """The Future is completed behind wait(), whether it was asked for before or afterwards."""
    values = []
    for early in (True, False):
        x = torch.full((1 << 16,), 1.0 + dist.get_rank(), device="mps")
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future() if early else None
        work.wait()
        future = future or work.get_future()
        assert future.done()
        values.append(future.value()[0].unique().tolist())
    return values


def test_wait_completes_the_future(ranks):
    assert ranks.run(future_after_wait) == [[[3.0], [3.0]]] * 2


def collective_in_callback(rounds):
    """As the PowerSGD hooks of DistributedDataParallel. On one core a collective may end before its caller looks."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[dist.get_rank() % len(cores)]})
    values = []
    for _ in range(rounds):
        x = torch.full((3,), 1.0 + dist.get_rank(), device="mps")
        for _ in range(3):
            first = dist.all_reduce(x, async_op=True).get_future()
            x = first.then(lambda done: dist.all_reduce(done.value()[0] + 1, async_op=True).get_future().wait()[0])
            x = x.wait()
        values.append(x.tolist())
    os.sched_setaffinity(0, cores)
    return values


def test_callbacks_may_wait_for_collectives(ranks):
    assert ranks.run(collective_in_callback, 100, patience=100) == [[[138.0] * 3] * 100] * 2


def coalesced():
    from torch.distributed.distributed_c10d import _coalescing_manager

    xs = [torch.full((n,), 1.0 + dist.get_rank(), device="mps") for n in (1, 4)]
    with _coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    out = [torch.zeros(2, device="mps") for _ in range(2)]
    with _coalescing_manager(device=torch.device("mps")):
        for o in out:
            dist.all_gather_into_tensor(o, xs[0][:1])
    scattered = [torch.zeros(2, device="mps") for _ in range(2)]
    with _coalescing_manager():
        for s in scattered:
            dist.reduce_scatter_tensor(s, torch.ones(4, device="mps"))
    return [t.tolist() for t in (*xs, *out, *scattered)]


def test_coalesced(ranks):
    assert ranks.run(coalesced) == [[[3.0], [3.0] * 4, [3.0] * 2, [3.0] * 2, [2.0] * 2, [2.0] * 2]] * 2


def sparse_gradients():
    """As on the CPU, where gloo sums them; DistributedDataParallel asks for it where an embedding is sparse."""
    rank = dist.get_rank()
    embedding = torch.nn.Embedding(6, 3, sparse=True).to("mps")
    model = torch.nn.parallel.DistributedDataParallel(embedding)
    model(torch.tensor([rank, 2], device="mps")).sum().backward()
    gradient = embedding.weight.grad
    assert gradient.is_sparse and gradient.device.type == "mps"
    return gradient.to_dense()[:, 0].tolist()


def test_sparse_gradients(pair):
    assert pair.run(sparse_gradients) == [[0.5, 0.5, 1.0, 0.0, 0.0, 0.0]] * 2


def objects_and_groups():
    rank = dist.get_rank()
    everything = [None, None]
    dist.all_gather_object(everything, {"rank": rank, "x": torch.ones(1, device="mps").item()})
    told = [("from 0",) if rank == 0 else None]
    dist.broadcast_object_list(told, 0)
    dist.barrier()
    dist.barrier(async_op=True).wait()
    alone = dist.new_group([rank]) if rank == 0 else dist.new_group([0])
    both = dist.new_group([0, 1], backend="anymps")
    x = torch.ones(2, device="mps")
    if rank == 0:
        dist.all_reduce(x, group=alone)
    dist.all_reduce(x, group=both)
    dist.destroy_process_group(both)
    return everything, told, x.tolist(), dist.get_backend()


def test_objects_barriers_and_groups(ranks):
    everything = [{"rank": 0, "x": 1.0}, {"rank": 1, "x": 1.0}]
    assert ranks.run(objects_and_groups) == [(everything, [("from 0",)], [2.0, 2.0], "gloo")] * 2


def group_that_ends():
    """Before the other rank comes: what it has been asked for is done first."""
    group, x = dist.new_group([0, 1]), torch.full((1 << 16,), 1.0 + dist.get_rank(), device="mps")
    if dist.get_rank() == 1:
        time.sleep(0.5)
    dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    del group
    return x.unique().tolist()


def test_a_group_may_end_with_collectives_under_way(ranks):
    assert ranks.run(group_that_ends) == [[3.0]] * 2


def many_steps():
    """More than both slots of the shared memory hold, and no multiple of anything."""
    count = 3 * (16 << 20) // 4 + 12345
    x = torch.arange(count, device="mps", dtype=torch.int32) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    expected = torch.arange(count, dtype=torch.int32) * 3
    scattered = torch.empty(count, device="mps", dtype=torch.int32)
    dist.reduce_scatter_tensor(scattered, torch.cat([x, x + 1]))
    gathered = torch.empty(2 * count, device="mps", dtype=torch.int32)
    dist.all_gather_into_tensor(gathered, x + dist.get_rank())
    wanted = (expected, 2 * (expected + dist.get_rank()), torch.cat([expected, expected + 1]))
    return [torch.equal(a.cpu(), b) for a, b in zip((x, scattered, gathered), wanted, strict=True)]


def test_many_steps(ranks):
    assert ranks.run(many_steps) == [[True] * 3] * 2


def shared_files():
    """Modes of the files in memory by which this rank shares its part, and whether it shares any."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "anymps_collectives" in os.readlink(f"/proc/self/fd/{number}"):
                status = os.stat(f"/proc/self/fd/{number}")
                found.append((oct(status.st_mode & 0o777), status.st_uid == os.geteuid()))
    return os.environ.get("ANYMPS_SHARED_MEMORY") != "0", set(found)


def test_shared_memory_is_private(ranks):
    for shares, files in ranks.run(shared_files):
        assert files == ({("0o600", True)} if shares else set())


def no_elements():
    x = torch.empty(0, 3, device="mps")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    out = torch.empty(0, 3, device="mps")
    dist.all_gather_into_tensor(out, x)
    dist.reduce_scatter_tensor(out, x)
    dist.all_to_all_single(out, x)
    return list(out.shape)


def test_no_elements(ranks):
    assert ranks.run(no_elements) == [[0, 3]] * 2


SHARED_ELEMENTS = (
    "RuntimeError: unsupported operation: more than one element of the written-to tensor refers to a single memory "
    "location. Please clone() the tensor before performing the operation."
)


def refusal(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "no error"


def refusals():
    x, y = torch.ones(2, device="mps"), torch.ones(3, device="mps")
    return [
        refusal(lambda: dist.all_reduce(x, op=dist.ReduceOp.BAND)),
        refusal(lambda: dist.all_reduce(x > 0, op=dist.ReduceOp.AVG)),
        refusal(lambda: dist.all_reduce(x.to(torch.complex64), op=dist.ReduceOp.MAX)),
        refusal(lambda: dist.all_reduce(x.to(torch.float8_e4m3fnuz))),
        refusal(lambda: dist.reduce_scatter_tensor(x[:1].to(torch.float8_e5m2fnuz), x.to(torch.float8_e5m2fnuz))),
        refusal(lambda: dist.all_reduce(x.to(torch.int32), op=dist._make_nccl_premul_sum(2.0))),
        refusal(lambda: dist.all_reduce(x.to(torch.uint64), op=dist.ReduceOp.MIN)),
        refusal(lambda: dist.all_reduce(x.to(torch.uint64), op=dist.ReduceOp.MAX)),
        refusal(lambda: dist.all_gather_into_tensor(y, x)),
        refusal(lambda: dist.all_gather_into_tensor(torch.ones(4, device="mps", dtype=torch.int32), x)),
        refusal(lambda: dist.reduce_scatter_tensor(x, y)),
        refusal(lambda: dist.all_gather([x, torch.ones(2)], x)),
        refusal(lambda: dist.all_to_all_single(y, y)),
        refusal(lambda: dist.all_to_all_single(y, y, [-1, 4], [2, 1])),
        refusal(lambda: dist.all_reduce(x[:1].expand(4))),
        refusal(lambda: dist.broadcast(y.expand(2, 3), 0) if dist.get_rank() else y.expand(2, 3).add_(1)),
    ]


def test_refusals(ranks):
    expected = [
        "RuntimeError: Cannot use ReduceOp.BAND with non-integral dtype",
        "RuntimeError: Cannot use ReduceOp.AVG with bool inputs",
        "ValueError: all_reduce does not support RedOpType.MAX on complex tensors",
        "RuntimeError: all_reduce does not add Float8_e4m3fnuz: convert the tensor first",
        "RuntimeError: reduce_scatter_tensor does not add Float8_e5m2fnuz: convert the tensor first",
        "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with non-floating dtype",
        *(f"RuntimeError: Cannot use ReduceOp.{op} with uint64 inputs" for op in ("MIN", "MAX")),
        "ValueError: output tensor size must be equal to world_size times input tensor size",
        "TypeError: all_gather_into_tensor: output tensor must have the same type as input tensor, got Int and Float",
        "ValueError: input tensor must be the same size as output size times world size",
        "RuntimeError: all_gather: expected all tensors on mps, but found one on cpu",
        "RuntimeError: Tensor's dim 0 does not divide equally across group size",
        *[SHARED_ELEMENTS] * 2,
    ]
    for refused in ranks.run(refusals):
        split = refused.pop(13)  # PyTorch's own check, in the words of its version
        assert split.startswith("RuntimeError: ") and "non-negative" in split
        assert refused == expected


def messages_to_oneself():
    """In a batch and alone, received before they are sent and after."""
    rank, found = dist.get_rank(), []
    for order in (1, -1):
        x = torch.arange(6, device="mps").view(2, 3) + 10 * rank
        y = torch.full((3, 2), -1, device="mps").t()
        batch = [dist.P2POp(dist.irecv, y, rank), dist.P2POp(dist.isend, x, rank)][::order]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        x.zero_()
        found.append((y - 10 * rank).tolist())
    a, b = torch.zeros(2, device="mps"), torch.zeros(2, device="mps")
    second = dist.irecv(a, rank, tag=2)
    for number in range(3):
        dist.isend(torch.full((2,), float(number), device="mps"), rank, tag=1 + number % 2)
    dist.irecv(b, rank, tag=1).wait()
    second.wait()
    late = refusal(lambda: dist.irecv(torch.zeros(3, device="mps"), rank, tag=1).wait())
    never = dist.irecv(b, rank, tag=7).is_completed()
    return found, a.tolist(), b.tolist(), late, never


def test_messages_to_oneself(ranks):
    error = "RuntimeError: recv: expected the sent tensor's 2 elements of Float, got a tensor of 3 elements of Float"
    expected = ([[[0, 1, 2], [3, 4, 5]]] * 2, [1.0, 1.0], [0.0, 0.0], error, False)
    assert ranks.run(messages_to_oneself) == [expected] * 2


def generators_in_step(difference: int):
    """PyTorch's check of generators, which says where the ranks' states differ."""
    from torch.distributed.collective_utils import _check_rng_sync

    found = []
    for generator in (torch.Generator("mps"), torch.mps.default_generators[0]):
        generator.manual_seed(3 + difference * dist.get_rank())
        found.append(_check_rng_sync(generator, dist.group.WORLD))
        torch.rand(5 + 4000 * difference * dist.get_rank(), device="mps", generator=generator)
        found.append(_check_rng_sync(generator, dist.group.WORLD))
    return [text and "desync" in text for text in found]


def test_generators_in_step(pair):
    assert pair.run(generators_in_step, 0) == [[None] * 4] * 2
    assert pair.run(generators_in_step, 1) == [[True] * 4] * 2


def works_in_flight():
    from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx as in_flight

    count = torch._C._distributed_c10d._get_work_registry_size
    with in_flight():  # as for a compiled graph, which finds works by their tensors
        work = dist.all_reduce(torch.ones(4, device="mps"), async_op=True)
        counts = [count()]
        work.wait()
        counts.append(count())
    return counts


def test_works_that_are_waited_for_are_forgotten(ranks):
    assert ranks.run(works_in_flight) == [[1, 0]] * 2
