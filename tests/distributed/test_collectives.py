"""Collectives of tensors on mps give what gloo gives for the same tensors of the CPU, in every dtype."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
FLOATS_OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
ADDED = (*FLOATS, *FLOATS_OF_8_BITS, *INTEGERS, *UNSIGNED, torch.bool, torch.complex64)
MOVED = (*ADDED, torch.float8_e4m3fnuz)
# What gloo adds in the CPU's tensors; others are compared with the same values in a dtype that it adds.
WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
WIDER |= dict.fromkeys(FLOATS_OF_8_BITS, torch.float32)


def values(shape, dtype, held, device, seed=0, rank=None):
    """Small integers that `dtype` has, held in another dtype; they differ from rank to rank."""
    generator = torch.Generator().manual_seed(100 * seed + (dist.get_rank() if rank is None else rank))
    low = 0 if dtype in (torch.uint8, *UNSIGNED) else -3
    return torch.randint(low, 4, shape, generator=generator).to(dtype).to(held).to(device)


def check(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b = (t.float() if t.dtype.itemsize == 1 and t.dtype.is_floating_point else t for t in (a, b))
        # gloo adds the bytes of bool: two of them give 2, which is True too.
        a, b = (t.view(torch.uint8) != 0 if t.dtype == torch.bool else t for t in (a, b))
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def all_reduce(device, dtype, held, op):
    x = values((5, 3), dtype, held, device)
    dist.all_reduce(x, op=op)
    return [x]


def reduce(device, dtype, held, op):
    x = values((5, 3), dtype, held, device)
    dist.reduce(x, 1, op=op)
    return [x] if dist.get_rank() == 1 or device == "mps" else [values((5, 3), dtype, held, device)]


def reduce_scatter(device, dtype, held, op):
    parts = [values((4,), dtype, held, device, i) for i in range(2)]
    out = torch.zeros(4, dtype=held, device=device)
    dist.reduce_scatter(out, parts, op=op)
    return [out]


def reduce_scatter_tensor(device, dtype, held, op):
    out = torch.zeros(3, 2, dtype=held, device=device)
    dist.reduce_scatter_tensor(out, values((6, 2), dtype, held, device), op=op)
    return [out]


REDUCTIONS = {f.__name__: f for f in (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)}
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def every_op(name, dtype):
    for op in OPS:
        if op.startswith("B") and (dtype.is_floating_point or dtype.is_complex):
            continue
        if dtype.is_complex and op != "SUM" or dtype == torch.uint64 and op in ("MIN", "MAX"):
            continue
        try:
            reduction = getattr(dist.ReduceOp, op)
            ours = REDUCTIONS[name]("mps", dtype, dtype, reduction)
            theirs = REDUCTIONS[name]("cpu", dtype, WIDER.get(dtype, dtype), reduction)
            check([t.cpu() for t in ours], [t.to(dtype) for t in theirs])
        except AssertionError as error:
            raise AssertionError(f"{op}: {error}") from error


@pytest.mark.parametrize("dtype", ADDED, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(ranks, name, dtype):
    ranks.run(every_op, name, dtype)


def averages(dtype):
    x = values((7,), dtype, dtype, "mps")
    mine = x.clone()
    dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    both = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(both, x)
    total = sum(each.cpu().to(torch.complex64 if dtype.is_complex else torch.float64) for each in both)
    expected = (total / 2).to(dtype) if dtype.is_floating_point or dtype.is_complex else (total / 2).trunc().to(dtype)
    check([mine.cpu()], [expected])
    out = torch.zeros(4, dtype=dtype, device="mps")
    dist.reduce_scatter_tensor(out, torch.cat([x[:4], x[:4]]), op=dist.ReduceOp.AVG)
    check([out.cpu()], [expected[:4]])


@pytest.mark.parametrize(
    "dtype", (*FLOATS, *FLOATS_OF_8_BITS, *INTEGERS, torch.complex64), ids=lambda dtype: str(dtype)[6:]
)
def test_averages(ranks, dtype):
    """AVG, which gloo lacks: the mean of the ranks, towards zero for integers."""
    ranks.run(averages, dtype)


def large_halves():
    x = torch.full((3,), 60000.0, dtype=torch.float16, device="mps")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x.tolist()


def test_average_of_halves_does_not_overflow(ranks):
    assert ranks.run(large_halves) == [[60000.0] * 3] * 2


def scaled_sums(dtype):
    """PREMUL_SUM by a number and by a tensor, which may differ from rank to rank, in all collectives that reduce."""
    rank, found = dist.get_rank(), []
    for factor in (2.0, torch.tensor([3.0 + rank], dtype=dtype, device="mps")):
        for call in (all_reduce, reduce_scatter, reduce_scatter_tensor):
            (scaled,) = call("mps", dtype, dtype, dist._make_nccl_premul_sum(factor))
            factors = [3.0, 4.0] if isinstance(factor, torch.Tensor) else [factor] * 2
            shape, seeds = {all_reduce: ((5, 3), [0]), reduce_scatter: ((4,), [0, 1])}.get(call, ((6, 2), [0]))
            parts = [[values(shape, dtype, torch.float32, "cpu", seed, peer) for seed in seeds] for peer in range(2)]
            sums = torch.stack([sum(f * p[i] for f, p in zip(factors, parts)) for i in range(len(seeds))])
            expected = sums[0] if call is all_reduce else sums.reshape(2, *scaled.shape)[rank]
            found.append(torch.equal(scaled.cpu().float(), expected))
    return found


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype)[6:])
def test_scaled_sums(ranks, dtype):
    assert ranks.run(scaled_sums, dtype) == [[True] * 6] * 2


def broadcast(device, dtype, held):
    x = values((4, 2), dtype, held, device)
    dist.broadcast(x, 1)
    return [x]


def all_gather(device, dtype, held):
    out = [torch.zeros(3, 2, device=device).to(held) for _ in range(2)]
    dist.all_gather(out, values((3, 2), dtype, held, device))
    return out


def all_gather_into_tensor(device, dtype, held):
    out = torch.zeros(6, 2, device=device).to(held)
    dist.all_gather_into_tensor(out, values((3, 2), dtype, held, device))
    return [out]


def gather(device, dtype, held):
    out = [torch.zeros(3, device=device).to(held) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(values((3,), dtype, held, device), out, dst=0)
    return out or []


def scatter(device, dtype, held):
    out = torch.zeros(3, device=device).to(held)
    parts = [values((3,), dtype, held, device, i) for i in range(2)] if dist.get_rank() == 1 else None
    dist.scatter(out, parts, src=1)
    return [out]


def all_to_all_single(device, dtype, held):
    out = torch.zeros(4, 3, device=device).to(held)
    dist.all_to_all_single(out, values((4, 3), dtype, held, device))
    return [out]


def uneven_all_to_all(device, dtype, held):
    """Rank 0 sends 1 and 4 rows, rank 1 sends 2 and 0."""
    sent = [[1, 4], [2, 0]]
    rank = dist.get_rank()
    got = [row[rank] for row in sent]
    out = torch.zeros(sum(got), 2, device=device).to(held)
    dist.all_to_all_single(out, values((sum(sent[rank]), 2), dtype, held, device), got, sent[rank])
    return [out]


def send_recv(device, dtype, held):
    x = values((5,), dtype, held, device)
    y = torch.zeros(5, device=device).to(held)
    if dist.get_rank() == 0:
        dist.send(x, 1, tag=3)
        dist.recv(y, 1, tag=4)
    else:
        dist.recv(y, tag=3)
        dist.send(x, 0, tag=4)
    return [y]


def exchange_of_messages(device, dtype, held):
    """Both send first: neither may wait for the other's receipt."""
    x, y = values((1 << 16,), dtype, held, device), torch.zeros(1 << 16, device=device).to(held)
    peer = 1 - dist.get_rank()
    ops = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [y]


MOVES = (
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    all_to_all_single,
    uneven_all_to_all,
    send_recv,
    exchange_of_messages,
)


def move(call, dtype):
    # gloo moves few dtypes; the same values in a wide one are the same values.
    ours = call("mps", dtype, dtype)
    check([t.cpu() for t in ours], [t.to(dtype) for t in call("cpu", dtype, torch.float32)])


@pytest.mark.parametrize("call", MOVES, ids=lambda call: call.__name__)
def test_moves(ranks, call):
    for dtype in MOVED:
        try:
            ranks.run(move, call, dtype)
        except AssertionError as error:
            raise AssertionError(f"{dtype}: {error}") from error


def uneven_lists():
    rank = dist.get_rank()
    mine = torch.arange(2.0 + 3 * rank, device="mps") + 10 * rank
    out = [torch.zeros(2, device="mps"), torch.zeros(5, device="mps")]
    dist.all_gather(out, mine)
    parts = [torch.full((n,), 1.0 + rank, device="mps") for n in (1, 3)]
    reduced = torch.zeros((1, 3)[rank], device="mps")
    dist.reduce_scatter(reduced, parts)
    back = [torch.zeros((1, 3)[rank], device="mps") for _ in range(2)]
    dist.all_to_all(back, parts)
    return [t.tolist() for t in out], reduced.tolist(), [t.tolist() for t in back]


def test_lists_of_different_sizes(ranks):
    """What NCCL does with lists whose tensors differ in size, and gloo refuses."""
    gathered = [[0.0, 1.0], [10.0, 11.0, 12.0, 13.0, 14.0]]
    assert ranks.run(uneven_lists) == [
        (gathered, [3.0], [[1.0], [2.0]]),
        (gathered, [3.0] * 3, [[1.0] * 3, [2.0] * 3]),
    ]
