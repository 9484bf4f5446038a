"""Collectives go on beside what the device computes: they wait for what was recorded before them, and for no more."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

SECONDS = (1, 2, 4, 8, 16)  # of the device's work that a test looks beside: other processes may take the host's cores


def work_of(products: int, side: int):
    x = torch.full((side, side), 1.0 / side, device="mps")
    y = x
    for _ in range(products):
        y = y @ x
    return y


def products_for(seconds: float, side: int) -> int:
    """How many of work_of's products take about as long."""
    count, taken = 4, 0.0
    while taken < seconds / 8:
        count *= 2
        torch.mps.synchronize()
        start = time.monotonic()
        work_of(count, side)
        torch.mps.synchronize()
        taken = time.monotonic() - start
    return int(count * seconds / taken) + 1


def begin_long_work(seconds: float):
    """Sends off work of about that long and returns the event behind it."""
    side = 256 if json.loads(torch.ops.anymps.device_info())["kind"] == "software" else 4096
    count = products_for(seconds, side)
    dist.barrier()
    work_of(count, side)
    return torch.mps.current_stream().record_event()


def in_all_ranks(true: bool) -> bool:
    told = torch.tensor(int(true))
    dist.all_reduce(told, op=dist.ReduceOp.MIN)
    return bool(told)


def call_behind_long_work():
    """A call that waited would find the device idle however long the work is; and a collective ends after the work."""
    for seconds in SECONDS:
        x = torch.full((1 << 18,), 1.0 + dist.get_rank(), device="mps")
        event = begin_long_work(seconds)
        work = dist.all_reduce(x, async_op=True)
        computing = not event.query()
        early = work.is_completed() and not event.query()
        work.wait()
        assert not early and x.unique().tolist() == [3.0]
        if in_all_ranks(computing):
            return True
    return False


def test_a_call_does_not_wait_for_what_is_recorded(pair):
    assert pair.run(call_behind_long_work) == [True] * 2


def collectives_before_long_work():
    """Of finished data, sizes of several chunks and of one: ended while the device computes what came later?"""
    for seconds in SECONDS:
        xs = [torch.full((n,), 1.0 + dist.get_rank(), device="mps") for n in (1 << 21, 100, 1 << 18)]
        torch.mps.synchronize()
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        event = begin_long_work(seconds)
        while not all(work.is_completed() for work in works) and not event.query():
            time.sleep(0.001)
        beside = not event.query()
        for work in works:
            work.wait()
        assert [x.unique().tolist() for x in xs] == [[3.0]] * 3
        if in_all_ranks(beside):
            return True
    return False


def test_collectives_end_while_the_device_computes(pair):
    assert pair.run(collectives_before_long_work) == [True] * 2


def wait_in_a_stream_of_its_own(key: str):
    """The other rank comes when this one's default stream has gone on."""
    side, current = torch.mps.Stream(), torch.mps.current_stream()
    store = dist.distributed_c10d._get_default_store()
    x = torch.full((1 << 16,), 1.0 + dist.get_rank(), device="mps")
    if dist.get_rank() == 1:
        store.wait([key])
    side.wait_stream(current)
    with torch.mps.stream(side):
        dist.all_reduce(x)
        event = side.record_event()
    y = (torch.ones(8, device="mps") * 2).tolist()
    waits = not event.query()
    if dist.get_rank() == 0:
        store.set(key, "1")
    current.wait_event(event)
    return waits, (x * 2).unique().tolist(), y


def test_a_stream_beside_waits_alone(pair, tmp_path):
    first, second = pair.run(wait_in_a_stream_of_its_own, str(tmp_path))
    assert first == (True, [6.0], [2.0] * 8)
    assert second[1:] == ([6.0], [2.0] * 8)


def commands_in_a_stream_that_waits():
    """What is recorded in the stream, or launched in it by another group, comes behind the collective."""
    side, other = torch.mps.Stream(), dist.new_group([0, 1])
    found = []
    for size in (100, 1 << 20):
        x = torch.full((size,), 1.0 + dist.get_rank(), device="mps")
        side.wait_stream(torch.mps.current_stream())
        with torch.mps.stream(side):
            dist.all_reduce(x)
            dist.all_reduce(x, group=other)
            x *= 2
        side.synchronize()
        found.append(x.unique().tolist())
        with torch.mps.stream(side):
            dist.all_reduce(x)
        torch.mps.synchronize()  # of the device: what any stream waits for
        found.append(x.unique().tolist())
    dist.destroy_process_group(other)
    return found


def test_streams_are_in_order(pair):
    assert pair.run(commands_in_a_stream_that_waits) == [[[12.0], [24.0]] * 2] * 2


def many_under_way(seed: int):
    """Dozens of collectives of all kinds and sizes that nobody waits for until the end."""
    rank, generator = dist.get_rank(), torch.Generator().manual_seed(seed)
    works, checks = [], []
    for number in range(40):
        size = int(torch.randint(1, 1 << int(torch.randint(4, 22, (), generator=generator)), (), generator=generator))
        x = torch.full((2 * size,), float(number + rank), device="mps")
        kind = number % 4
        if kind == 0:
            works.append(dist.all_reduce(x, async_op=True))
            checks.append((x, 2 * number + 1))
        elif kind == 1:
            out = torch.empty(4 * size, device="mps")
            works.append(dist.all_gather_into_tensor(out, x, async_op=True))
            checks += [(out[: 2 * size], number), (out[2 * size :], number + 1)]
        elif kind == 2:
            out = torch.empty(size, device="mps")
            works.append(dist.reduce_scatter_tensor(out, x, async_op=True))
            checks.append((out, 2 * number + 1))
        else:
            out, splits = torch.empty(2 * (rank + 1) * 3, device="mps"), [3, 6]
            works.append(
                dist.all_to_all_single(out, x[:1].expand(9).contiguous(), [3 * (rank + 1)] * 2, splits, async_op=True)
            )
            checks += [(out[: 3 * (rank + 1)], number), (out[3 * (rank + 1) :], number + 1)]
    for work in works if seed % 2 else reversed(works):
        work.wait()
    return [bool((x == value).all()) for x, value in checks]


@pytest.mark.parametrize("seed", range(3))
def test_many_under_way(ranks, seed):
    for found in ranks.run(many_under_way, seed):
        assert len(found) == 60 and all(found)


def memory_that_was_waited_for(beside: bool):
    """The other rank comes late, so that the host is ahead by all collectives. Returns the most MiB that were taken."""
    side, current = torch.mps.Stream(), torch.mps.current_stream()
    stream = side if beside else current
    total = torch.zeros(1 << 18, device="mps")
    dist.barrier()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    if dist.get_rank() == 1:
        time.sleep(0.2)
    for number in range(30):
        x = torch.full((1 << 18,), float(number + dist.get_rank()), device="mps")
        side.wait_stream(current)
        with torch.mps.stream(stream):
            out = torch.empty(1 << 19, device="mps")
            dist.all_gather_into_tensor(out, x)
            event = stream.record_event()
        current.wait_event(event)
        total += out.view(2, -1).sum(0)
        del x, out
    taken = torch.accelerator.max_memory_allocated() - before
    return taken >> 20, total.unique().tolist()


@pytest.mark.parametrize("beside", [False, True])
def test_memory_that_was_waited_for_is_reused(ranks, beside):
    for taken, total in ranks.run(memory_that_was_waited_for, beside):
        assert taken <= 12  # three collectives' at 3 MiB, and sums; 30 would take 90
        assert total == [sum(2.0 * number + 1 for number in range(30))]


def memory_after_wait(key: str, beside: bool):
    """MiB that are in use once the stream waits, beside the result, while the other rank has not come yet."""
    side, current = torch.mps.Stream(), torch.mps.current_stream()
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    torch.mps.synchronize()
    before = torch.accelerator.memory_allocated()
    if dist.get_rank() == 1:
        store.wait([key])
    out = torch.empty(1 << 18, device="mps")
    x = torch.ones(1 << 19, device="mps")
    side.wait_stream(current)
    with torch.mps.stream(side if beside else current):
        dist.reduce_scatter_tensor(out, x)
        event = torch.mps.current_stream().record_event()
    held = torch.accelerator.memory_allocated() - before
    current.wait_event(event)
    del x
    torch.accelerator.reset_peak_memory_stats()
    y = torch.empty(1 << 18, device="mps")
    taken = torch.accelerator.max_memory_allocated() - before
    if dist.get_rank() == 0:
        store.set(key, "1")
    return held >> 20, taken >> 20, out.unique().tolist(), y.numel()


@pytest.mark.parametrize("beside", [False, True])
def test_memory_is_free_once_the_stream_waits(pair, tmp_path, beside):
    first, _ = pair.run(memory_after_wait, f"{tmp_path}", beside)
    assert first[:3] == (3, 2, [2.0])


def memory_while_python_computes():
    """MiB that two results of 2 MiB take one after the other; no other thread gets the interpreter between them."""
    x, taken = torch.ones(1 << 18, device="mps"), []
    interval = sys.getswitchinterval()
    for _ in range(3):
        dist.barrier()
        torch.mps.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        sys.setswitchinterval(100)
        try:
            out = torch.empty(1 << 19, device="mps")
            dist.all_gather_into_tensor(out, x)
            del out
            end = time.monotonic() + 0.3
            while time.monotonic() < end:  # the collective ends, in a thread of its own
                pass
            out = torch.empty(1 << 19, device="mps")
            taken.append(torch.accelerator.max_memory_allocated() - before >> 20)
        finally:
            sys.setswitchinterval(interval)
        del out
    return taken


def test_memory_does_not_wait_for_the_interpreter(ranks):
    assert ranks.run(memory_while_python_computes) == [[2] * 3] * 2


def small_ones():
    """More than there are small slots for, waited for at once, late, never, and in the order of the calls or not."""
    rank, xs, works = dist.get_rank(), [], []
    for number in range(60):
        x = torch.full((number + 1,), float(number + rank), device="mps")
        work = dist.all_reduce(x, async_op=True)
        if number % 3 == 0:
            work.wait()
            x = x * 1
        xs.append(x)
        works.append(work)
    for work in reversed(works):
        work.wait()
    return [x.unique().tolist() == [2.0 * number + 1] for number, x in enumerate(xs)]


def test_small_ones(ranks):
    assert ranks.run(small_ones) == [[True] * 60] * 2


def late_small_ones():
    x = torch.ones(16, device="mps")
    if dist.get_rank() == 1:
        time.sleep(0.2)
    dist.all_reduce(x)
    dist.all_reduce(x)
    return x.tolist()


def test_three_ranks():
    with Ranks(3) as three:
        assert three.run(late_small_ones) == [[9.0] * 16] * 3


def traced(folder: str):
    """Names, bytes and lanes of what a trace shows beside the queue."""
    x = torch.ones(1000, device="mps")
    dist.all_reduce(x)
    with torch.profiler.profile() as trace:
        y = x * 2
        dist.all_reduce(y)
        torch.mps.synchronize()
    path = f"{folder}/{dist.get_rank()}.json"
    trace.export_chrome_trace(path)
    with open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("name") == "anymps:all_reduce"]
    return [(event["cat"], event["tid"], event["args"]["bytes"], event["dur"] > 0) for event in events]


def traced_often(folder: str):
    """What single traces show, on one core: their ends come before the threads of collectives are told."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return [traced(folder) for _ in range(30)]


def test_traces_show_collectives(tmp_path):
    with Ranks(2) as two:
        for traces in two.run(traced_often, str(tmp_path)):
            assert traces == [[("kernel", 1, 4000, True)]] * 30


def steps_beside_collectives(folder: str):
    """Does a trace of a step show an all_reduce beside a product? Other processes may take the cores meanwhile."""
    side = 256 if json.loads(torch.ops.anymps.device_info())["kind"] == "software" else 2048
    net = torch.nn.Sequential(*(torch.nn.Linear(side, side) for _ in range(6))).to("mps")
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=3 * side * side / 2**20)
    x = torch.randn(side, side, device="mps")

    def step():
        model.zero_grad()
        model(x).square().mean().backward()
        torch.mps.synchronize()

    for _ in range(3):  # DistributedDataParallel makes its buckets in the first ones
        step()
    for _ in range(12):
        dist.barrier()
        with torch.profiler.profile() as trace:
            step()
        path = f"{folder}/{dist.get_rank()}.json"
        trace.export_chrome_trace(path)
        with open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"]
        spans = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in events]
        collectives = [span for span in spans if span[0] == "anymps:all_reduce"]
        products = [span for span in spans if "matmul" in span[0]]
        assert len(collectives) >= 6 and len(products) >= 17, spans
        if in_all_ranks(any(b < end and begin < e for _, b, e in products for _, begin, end in collectives)):
            return True
    return False


def test_traces_show_collectives_beside_a_step(pair, tmp_path):
    assert pair.run(steps_beside_collectives, str(tmp_path)) == [True] * 2
