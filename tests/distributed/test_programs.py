"""Random programs of collectives, messages and kernels on few tensors, with as few waits as NCCL asks for.

All ranks record the same program; what it gives is computed on the CPU, for all of them and one step after the other.
"""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist
from ranks import Ranks

STEPS = 40
PROGRAMS = 8  # of a test
BUFFERS, PART = 3, 60  # PART: elements of a buffer for each rank
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def reduced(tensors):
    """Of integers the sum, which is exact however often; of floats the maximum."""
    stacked = torch.stack(tensors)
    return stacked.amax(0) if stacked.is_floating_point() else stacked.sum(0, dtype=stacked.dtype)


def assign(tensors, values):
    for tensor, value in zip(tensors, [value.clone() for value in values], strict=True):
        tensor.copy_(value)


class Step:
    """Of a group of `size` ranks: x, a tensor of any strides, and parts, one of its shape for each rank elsewhere.

    A function of the step's name starts it in this rank and returns its Works; one of the name and `_of_all` gives
    what all ranks hold then.
    """

    def __init__(self, group, size: int, x, parts):
        self.group, self.x, self.parts = group, x, parts
        self.how = {"group": group, "async_op": True}
        self.op = {"op": dist.ReduceOp.MAX if x.is_floating_point() else dist.ReduceOp.SUM}
        self.root = dist.get_global_rank(group, 0)
        rank = dist.get_rank(group)
        self.next, self.last = (dist.get_global_rank(group, (rank + step) % size) for step in (1, -1))
        self.is_root = rank == 0

    def all_reduce(self):
        return [dist.all_reduce(self.x, **self.how, **self.op)]

    def broadcast(self):
        return [dist.broadcast(self.x, self.root, **self.how)]

    def all_gather(self):
        return [dist.all_gather(self.parts, self.x, **self.how)]

    def reduce_scatter(self):
        return [dist.reduce_scatter(self.x, self.parts, **self.how, **self.op)]

    def scatter(self):
        return [dist.scatter(self.x, self.parts if self.is_root else None, self.root, **self.how)]

    def exchange(self):
        send = dist.P2POp(dist.isend, self.x, self.next, group=self.group)
        return dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, self.parts[0], self.last, group=self.group)])

    @staticmethod
    def all_reduce_of_all(xs, parts):
        assign(xs, [reduced(xs)] * len(xs))

    @staticmethod
    def broadcast_of_all(xs, parts):
        assign(xs, [xs[0]] * len(xs))

    @staticmethod
    def all_gather_of_all(xs, parts):
        for of_rank in parts:
            assign(of_rank, xs)

    @staticmethod
    def reduce_scatter_of_all(xs, parts):
        assign(xs, [reduced(list(tensors)) for tensors in zip(*parts, strict=True)])

    @staticmethod
    def scatter_of_all(xs, parts):
        assign(xs, parts[0])

    @staticmethod
    def exchange_of_all(xs, parts):
        assign([of_rank[0] for of_rank in parts], [*xs[-1:], *xs[:-1]])


COLLECTIVES = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "scatter"]


def random_view(rng, scale: int):
    """Size, strides and offset, of at most PART * scale elements from the first to the last."""
    rows, columns, pad = rng.randint(1, 5), rng.randint(1, 5), rng.randint(0, 1)
    layouts = [
        ((rng.choice([0, 1, 7, 20 * scale]),), (1,)),
        ((rows * columns,), (2,)),
        ((rows, columns), (columns + pad, 1)),
        ((columns, rows), (1, columns + pad)),
        ((), ()),
    ]
    return *rng.choice(layouts), rng.randint(0, 9)


def run_program(seed: int, groups):
    """Whether the buffers of this rank hold what they should; groups are pairs of ranks and a process group."""
    rng, rank, world = random.Random(seed), dist.get_rank(), dist.get_world_size()
    own = random.Random(seed * world + rank)  # for what may differ between ranks
    scale, dtype = rng.choice([1, 1, 2000]), rng.choice(DTYPES)
    part = PART * scale
    generator = torch.Generator().manual_seed(seed)
    of_all = [
        [torch.randint(0, 5, (world * part,), generator=generator).to(dtype) for _ in range(BUFFERS)]
        for _ in range(world)
    ]
    buffers = [buffer.to("mps") for buffer in of_all[rank]]
    streams = [torch.mps.current_stream(), torch.mps.Stream()]
    pending = []  # Works, the buffers that they use, the group, whether they are messages

    def wait(used, group=None, message=False):
        """For what uses these buffers; what one group does is in order, but two messages are not."""
        for each in list(pending):
            works, others, of_group, messages = each
            if not used.isdisjoint(others) and (of_group is not group or message and messages):
                pending.remove(each)
                for work in works:
                    work.wait()

    for _ in range(STEPS):
        kind = rng.choice([*COLLECTIVES, "exchange", "kernel", "kernel", "stream"])
        a, b = rng.sample(range(BUFFERS), 2)
        members, group = rng.choice(groups)
        size, strides, first = random_view(rng, scale)
        dense = torch.empty(size, device="meta").stride()
        if own.random() < 0.05:
            time.sleep(0.01)
        tensors = [  # of this rank on mps, then of all on the CPU: x and the parts
            (
                of_rank[a].as_strided(size, strides, first),
                [of_rank[b].as_strided(size, dense, number * part + first) for number in range(len(members))],
            )
            for of_rank in (buffers, *of_all)
        ]
        (x, parts), *rest = tensors
        if kind == "stream":
            streams.reverse()
            streams[0].wait_stream(streams[1])
        elif kind == "kernel":
            wait({a, b})
            with torch.mps.stream(streams[0]):
                x.add_(parts[0]).clamp_(max=100)
            for x, parts in rest:
                x.add_(parts[0]).clamp_(max=100)
        else:
            used, message = {a} if kind in COLLECTIVES[:2] else {a, b}, kind == "exchange"
            if rank in members:
                wait(used, group, message)
                with torch.mps.stream(streams[0]):
                    works = getattr(Step(group, len(members), x, parts), kind)()
                pending.append((works, used, group, message))
            xs, parts = zip(*(rest[member] for member in members), strict=True)
            getattr(Step, f"{kind}_of_all")(xs, parts)
    own.shuffle(pending)
    wait(set(range(BUFFERS)))
    torch.mps.synchronize()
    return all(torch.equal(buffer.cpu(), wanted) for buffer, wanted in zip(buffers, of_all[rank], strict=True))


def run_programs(first: int):
    """Seeds of the programs that went wrong."""
    world = dist.get_world_size()
    everyone = tuple(range(world))
    subsets = [everyone, *((i, i + 1) for i in range(world - 1) if world > 2)]
    groups = [(everyone, dist.group.WORLD), *((members, dist.new_group(list(members))) for members in subsets)]
    wrong = [seed for seed in range(first, first + PROGRAMS) if not run_program(seed, groups)]
    dist.barrier()
    for members, group in groups[1:]:
        if dist.get_rank() in members:
            dist.destroy_process_group(group)
    return wrong


def test_two_ranks(ranks):
    assert ranks.run(run_programs, 0) == [[]] * 2


def test_three_ranks():
    with Ranks(3) as three:
        assert three.run(run_programs, 200) == [[]] * 3
