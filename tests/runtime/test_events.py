"""torch.mps.Event, torch.Event and streams."""

from __future__ import annotations

import time

import pytest
import torch


def busy_work(device, repeats: int = 20) -> torch.Tensor:
    x = torch.ones(1 << 18, device=device)
    for _ in range(repeats):
        x = x + 1
    return x


def test_elapsed_time_is_that_of_the_device(mps):
    start, end = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    busy_work(mps, 1)
    torch.mps.synchronize()
    began = time.perf_counter()
    start.record()
    busy_work(mps)
    end.record()
    measured = start.elapsed_time(end)
    wall = (time.perf_counter() - began) * 1000
    assert 0 < measured <= wall
    assert end.query() and start.query()


def test_order_and_reuse_of_events(mps):
    a, b = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    for _ in range(100):  # more than one chunk of timestamps would hold if slots were lost
        a.record()
        busy_work(mps, 1)
        b.record()
    b.synchronize()
    assert a.elapsed_time(b) > 0
    assert b.elapsed_time(a) < 0
    many = [torch.mps.Event(enable_timing=True) for _ in range(200)]
    for event in many:
        event.record()
    times = [many[0].elapsed_time(event) for event in many]
    assert times == sorted(times)


def test_query_before_and_after(mps):
    event = torch.mps.Event()
    assert event.query()  # never recorded
    busy_work(mps)
    event.record()
    event.wait()
    event.synchronize()
    assert event.query()


def test_events_without_timing_have_no_times(mps):
    a, b = torch.mps.Event(), torch.mps.Event()
    a.record()
    b.record()
    with pytest.raises(RuntimeError, match="Events were not created with argument 'enable_timing=True'"):
        a.elapsed_time(b)
    c, d = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    c.record()
    with pytest.raises(RuntimeError, match="recorded before calculating elapsed time"):
        c.elapsed_time(d)


def test_backend_generic_events(mps):
    start, end = torch.Event(mps, enable_timing=True), torch.Event(mps, enable_timing=True)
    start.record()
    busy_work(mps)
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    plain = torch.Event(mps)
    plain.record()
    plain.wait()
    plain.synchronize()
    assert plain.device == torch.device("mps:0")


def test_streams(mps):
    stream = torch.accelerator.current_stream()
    assert stream != torch.Stream(device=mps)
    with torch.Stream(device=mps):
        x = busy_work(mps, 3)
    event = stream.record_event()
    stream.wait_event(event)
    stream.synchronize()
    assert stream.query()
    assert x[0].item() == 4
    torch.accelerator.synchronize()
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="Invalid MPS device index 1"):
        torch.accelerator.set_device_index(1)
