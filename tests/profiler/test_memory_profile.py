"""Memory of mps in torch.profiler, torch.accelerator's statistics and PyTorch's memory viewer."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch.profiler import profile, record_function

import torch_anymps

MIB = 1 << 20


@pytest.fixture
def empty_cache(no_garbage):
    torch.mps.empty_cache()


def test_profiles_count_the_devices_memory(mps, no_garbage):
    with profile(profile_memory=True) as p, record_function("step"):
        x = torch.empty(MIB, dtype=torch.uint8, device=mps)
        y = torch.empty(2 * MIB, dtype=torch.uint8, device=mps)
        del x
    averages = {e.key: e for e in p.key_averages()}
    assert averages["aten::empty"].self_device_memory_usage == 3 * MIB
    assert averages["step"].device_memory_usage == 2 * MIB
    assert "Self MPS Mem" in p.key_averages().table()
    del y


def test_traces_have_totals(mps, no_garbage, tmp_path):
    before = torch.accelerator.memory_allocated()
    with profile(profile_memory=True) as p:
        x = torch.empty(MIB, dtype=torch.uint8, device=mps)
        del x
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    records = [e["args"] for e in events if e["name"] == "[memory]" and e["args"]["Device Type"] == 13]
    assert [r["Bytes"] for r in records] == [MIB, -MIB]
    assert [r["Total Allocated"] for r in records] == [before + MIB, before]
    assert records[0]["Addr"] == records[1]["Addr"] != 0
    assert records[0]["Total Reserved"] == torch.accelerator.memory_reserved()


@pytest.mark.filterwarnings("ignore:.*export_memory_timeline.* is deprecated")
@pytest.mark.parametrize("device", ["mps", "mps:0", None])
def test_memory_timeline(mps, tmp_path, device):
    model = torch.nn.Linear(256, 1024, device=mps)
    x = torch.randn(64, 256, device=mps)
    with profile(profile_memory=True, record_shapes=True, with_stack=True) as p:
        model(x).relu().sum().backward()
    path = tmp_path / "timeline.json"
    p.export_memory_timeline(str(path), device=device)
    times, sizes = json.loads(path.read_text())
    most = max(sum(row) for row in sizes)
    activations = 64 * 1024 * 4
    assert len(times) == len(sizes) > 4
    assert most >= 2 * 1024 * 256 * 4 + activations
    assert any(row[1 + 4] or row[1 + 1] for row in sizes)  # something has a category
    html = tmp_path / "timeline.html"
    p.export_memory_timeline(str(html), device=device)
    assert "Max memory allocated" in html.read_text() or "<img" in html.read_text()


def test_statistics_are_as_rich_as_those_of_cuda(empty_cache):
    x = [torch.empty(3 * MIB, dtype=torch.uint8, device="mps") for _ in range(3)]
    stats = torch.accelerator.memory_stats()
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes"):
        for pool in ("all", "large_pool", "small_pool"):
            assert {f"{name}.{pool}.{metric}" for metric in ("current", "peak", "allocated", "freed")} <= stats.keys()
    assert {"num_ooms", "num_alloc_retries", "num_device_alloc", "num_device_free", "num_sync_all_streams"} <= (
        stats.keys()
    )
    before = torch.accelerator.memory_allocated()
    assert before == torch.mps.current_allocated_memory()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before
    y = torch.empty(5 * MIB, dtype=torch.uint8, device="mps")
    del y
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == before + 5 * MIB
    assert torch.accelerator.max_memory_reserved() >= torch.accelerator.max_memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0
    del x


def test_free_memory_between_tensors_is_inactive_split(empty_cache):
    def inactive():
        stats = torch.accelerator.memory_stats()
        return stats["inactive_split.all.current"], stats["inactive_split_bytes.all.current"]

    count, held = inactive()
    x = [torch.empty(2 * MIB, dtype=torch.uint8, device="mps") for _ in range(4)]  # of one segment of 20 MiB
    assert inactive() == (count + 1, held + 12 * MIB)
    x[1] = None
    assert inactive() == (count + 2, held + 14 * MIB)
    x[2] = None
    assert inactive() == (count + 2, held + 16 * MIB)
    x[3] = None
    assert inactive() == (count + 1, held + 18 * MIB)
    x[0] = None
    assert inactive() == (count, held)


def test_running_out_is_counted_and_shown(mps):
    before = torch.accelerator.memory_stats()["num_ooms"]
    torch_anymps.memory.record_history(stacks=False)
    torch.mps.set_per_process_memory_fraction(1e-4)
    try:
        with profile(profile_memory=True) as p, pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 32, dtype=torch.uint8, device=mps)
    finally:
        torch.mps.set_per_process_memory_fraction(1.7)
    assert torch.accelerator.memory_stats()["num_ooms"] == before + 1
    assert any(e.name == "[OutOfMemory]" for e in p.events())
    [event] = [e for e in torch_anymps.memory.snapshot()["device_traces"][0] if e["action"] == "oom"]
    assert event["size"] == 1 << 32 and event["device_free"] > 0
    torch_anymps.memory.record_history(False)


def allocate_here(mps):
    return torch.empty(3 * MIB + 5, dtype=torch.uint8, device=mps)


def test_snapshots_have_blocks_events_and_stacks(empty_cache, tmp_path):
    torch_anymps.memory.record_history()
    x = allocate_here("mps")
    y = allocate_here("mps")
    address = y.data_ptr()
    del y
    torch_anymps.memory.dump_snapshot(tmp_path / "memory.pickle")
    torch_anymps.memory.record_history(False)
    snapshot = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    [segment] = [s for s in snapshot["segments"] if s["address"] <= x.data_ptr() < s["address"] + s["total_size"]]
    assert segment["segment_type"] == "large" and segment["segment_pool_id"] == (0, 0)
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    [block] = [b for b in segment["blocks"] if b["address"] == x.data_ptr()]
    assert block["state"] == "active_allocated" and block["requested_size"] == 3 * MIB + 5 <= block["size"]
    assert block["frames"][0]["name"] == "allocate_here"
    assert block["frames"][0]["filename"].endswith("test_memory_profile.py")
    actions = [e["action"] for e in snapshot["device_traces"][0] if e.get("addr") == address]
    assert actions[-3:] == ["alloc", "free_requested", "free_completed"]
    assert snapshot["device_traces"][0][-1]["action"] == "snapshot"
    assert torch.accelerator.memory._snapshot()["segments"]


def test_pytorchs_viewer_takes_snapshots(empty_cache):
    from torch.cuda import _memory_viz

    torch_anymps.memory.record_history()
    x = allocate_here("mps")
    snapshot = torch_anymps.memory.snapshot()
    torch_anymps.memory.record_history(False)
    assert "allocate_here" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "segments:" in _memory_viz.segsum(snapshot)
    assert "alloc" in _memory_viz.trace(snapshot)
    assert "allocate_here" in _memory_viz.trace_plot(snapshot) or len(_memory_viz.trace_plot(snapshot)) > 1000
    del x


def test_history_is_bounded_and_off_by_default(mps):
    allocate_here(mps)
    assert torch_anymps.memory.snapshot()["device_traces"] == [[]]
    torch_anymps.memory.record_history(max_entries=10, stacks=False)
    for _ in range(20):
        allocate_here(mps)
    assert len(torch_anymps.memory.snapshot()["device_traces"][0]) == 10
    torch_anymps.memory.record_history(False)
    with pytest.raises(ValueError, match="max_entries"):
        torch_anymps.memory.record_history(max_entries=-1)
