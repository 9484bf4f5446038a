"""torch.profiler on mps: lanes, arrows, names, columns, clocks; threads, graphs, schedules."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import torch_anymps


def trace_of(profiler, tmp_path) -> list[dict]:
    """Complete events of the Chrome trace."""
    path = str(tmp_path / "trace.json")
    profiler.export_chrome_trace(path)
    with open(path) as file:
        return json.load(file)["traceEvents"]


def of_category(events, category) -> list[dict]:
    return [e for e in events if e.get("cat") == category]


def calls_of(events) -> dict[int, dict]:
    """The host's calls that have commands, by the number that both have."""
    calls = of_category(events, "privateuse1_runtime")
    return {e["args"]["correlation"]: e for e in calls if "correlation" in e.get("args", {})}


def rows(profiler) -> dict:
    return {(e.key, e.device_type.name): e for e in profiler.key_averages()}


@pytest.fixture
def matrices(mps):
    """Two factors, and one product of them so that what follows finds its kernels built."""
    a, b = torch.randn(96, 64, device=mps), torch.randn(64, 32, device=mps)
    (a @ b).relu()
    torch.mps.synchronize()
    return a, b


def test_kernels_have_names_times_grids_and_bytes(matrices, tmp_path):
    a, b = matrices
    with profile() as p:
        (a @ b).relu_()
    kernels = of_category(trace_of(p, tmp_path), "kernel")
    assert [k["name"].split("_")[0] for k in kernels] == ["matmul", "relu"]
    relu = kernels[1]["args"]
    assert relu["bytes"] == 2 * 96 * 32 * 4
    assert relu["grid"][0] >= 1 and len(relu["grid"]) == 3
    assert relu["device"] == 0 and relu["stream"] == 0
    assert kernels[0]["args"]["operations"] == 2 * 96 * 64 * 32
    assert all(k["dur"] > 0 and k["pid"] == 0 for k in kernels)


def test_lanes_are_named_after_the_device(matrices, tmp_path):
    with profile() as p:
        matrices[0].neg()
    names = [e["args"]["name"] for e in trace_of(p, tmp_path) if e.get("ph") == "M" and "name" in e["args"]]
    assert f"mps:0 ({torch.backends.mps.get_name()})" in names and "queue 0" in names


def test_arrows_lead_from_calls_inside_of_operators_to_kernels(matrices, tmp_path):
    a, b = matrices
    with profile() as p:
        a @ b
        a.neg()
    events = trace_of(p, tmp_path)
    ops = {e["args"]["External id"]: e for e in of_category(events, "cpu_op")}
    calls = calls_of(events)
    arrows = Counter((e["ph"], e["id"]) for e in of_category(events, "ac2g"))
    kernels = of_category(events, "kernel")
    assert len(kernels) == 2
    for kernel, op in zip(kernels, ("aten::mm", "aten::neg"), strict=True):
        call = calls[kernel["args"]["correlation"]]
        owner = ops[kernel["args"]["External id"]]
        assert owner["name"] == op
        assert call["name"] == "vkCmdDispatch" and call["tid"] == owner["tid"]
        assert owner["ts"] - 20 <= call["ts"] <= owner["ts"] + owner["dur"] + 20  # two clocks of the host
        assert arrows["s", kernel["args"]["correlation"]] == arrows["f", kernel["args"]["correlation"]] == 1


def test_device_runs_what_the_host_asked_for_and_before_it_had_waited(matrices, tmp_path):
    a, b = matrices
    with profile() as p:
        for _ in range(20):
            (a @ b).sum().item()
    events = trace_of(p, tmp_path)
    calls = calls_of(events)
    kernels = of_category(events, "kernel")
    assert len(kernels) >= 40
    for kernel in kernels:
        assert kernel["ts"] >= calls[kernel["args"]["correlation"]]["ts"] - 50
    ends = [e["ts"] + e["dur"] for e in of_category(events, "cpu_op") if e["name"] == "aten::item"]
    for end, last in zip(sorted(ends), kernels[1::2], strict=False):
        assert last["ts"] + last["dur"] <= end + 50
    for first, second in zip(kernels, kernels[1:], strict=False):
        assert second["ts"] >= first["ts"] + first["dur"] - 0.01  # one queue, in order


def test_copies_and_fills(mps, tmp_path):
    x = torch.randn(1 << 16, device=mps)
    torch.mps.synchronize()
    with profile() as p:
        x.clone()
        torch.empty_like(x).zero_()
        x.mul_(2)
        y = torch.ones(1 << 16).to(mps)  # not while the queue is idle: unified memory is written directly then
    assert y.sum().item() == 1 << 16
    events = trace_of(p, tmp_path)
    fill = of_category(events, "gpu_memset")
    assert [e["name"] for e in fill] == ["Memset"] and fill[0]["args"]["bytes"] == x.nbytes
    copies = of_category(events, "gpu_memcpy")
    assert {"Memcpy HtoD"} >= {e["name"] for e in copies}
    assert all(e["args"]["bytes"] > 0 for e in copies)


def test_table_has_columns_of_mps(matrices):
    a, b = matrices
    with profile(record_shapes=True, with_flops=True) as p:
        a @ b
    table = p.key_averages().table(sort_by="self_device_time_total")
    assert "Self MPS" in table and "MPS total" in table and "Self MPS time total" in table
    op = rows(p)["aten::mm", "CPU"]
    kernel = next(e for (name, _), e in rows(p).items() if name.startswith("matmul_"))
    assert op.device_time_total == pytest.approx(kernel.self_device_time_total) and op.device_time_total > 0
    assert op.flops == 2 * 96 * 64 * 32
    assert p.profiler.use_device == "mps"


def test_backward_threads_have_operators_of_their_own(mps, tmp_path):
    weight = torch.randn(32, 32, device=mps, requires_grad=True)
    x = torch.randn(8, 32, device=mps)
    (x @ weight).tanh().sum().backward()
    torch.mps.synchronize()
    with profile() as p:
        (x @ weight).tanh().sum().backward()
    events = trace_of(p, tmp_path)
    ops = {e["args"]["External id"]: e for e in of_category(events, "cpu_op")}
    owners = {k["name"]: ops[k["args"]["External id"]] for k in of_category(events, "kernel")}
    assert owners["tanh_f32_dense"]["name"] == "aten::tanh"
    assert owners["tanh_backward_f32_dense"]["name"] == "aten::tanh_backward"
    assert owners["tanh_f32_dense"]["tid"] != owners["tanh_backward_f32_dense"]["tid"]
    backward = rows(p)["TanhBackward0", "CPU"]
    assert backward.device_time_total > 0


def test_threads_do_not_mix_their_operators(mps, tmp_path):
    """Threads that PyTorch's profiler does not follow have kernels too, of no operator."""
    x = [torch.rand(64, device=mps) for _ in range(4)]
    calls = {"neg": torch.neg, "exp": torch.exp, "sin": torch.sin, "cos": torch.cos}
    for call in calls.values():
        call(x[0])
    torch.mps.synchronize()

    def work(call, tensor):
        for _ in range(50):
            call(tensor)

    with profile() as p:
        threads = [threading.Thread(target=work, args=a) for a in list(zip(calls.values(), x, strict=True))[1:]]
        for thread in threads:
            thread.start()
        work(torch.neg, x[0])
        for thread in threads:
            thread.join()
    events = trace_of(p, tmp_path)
    ops = {e["args"]["External id"]: e["name"] for e in of_category(events, "cpu_op")}
    kernels = of_category(events, "kernel")
    assert Counter(k["name"].split("_")[0] for k in kernels) == dict.fromkeys(calls, 50)
    for kernel in kernels:
        owner = ops.get(kernel["args"].get("External id"))
        assert owner == ("aten::neg" if kernel["name"].startswith("neg") else None)


def test_annotations_span_their_kernels_on_the_device(matrices, tmp_path):
    a, b = matrices
    with profile() as p, record_function("outer"):
        a.neg()
        with record_function("inner"):
            a @ b
            a.exp()
    events = trace_of(p, tmp_path)
    spans = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in of_category(events, "gpu_user_annotation")}
    kernels = [(k["ts"], k["ts"] + k["dur"]) for k in of_category(events, "kernel")]
    assert spans["outer"] == pytest.approx((kernels[0][0], kernels[-1][1]), abs=0.01)
    assert spans["inner"] == pytest.approx((kernels[1][0], kernels[-1][1]), abs=0.01)
    total = sum(k.self_device_time_total for k in p.key_averages() if k.device_type.name == "CPU")
    assert total == pytest.approx(sum(end - begin for begin, end in kernels), rel=1e-3)


def test_schedule_and_steps(matrices):
    a, b = matrices
    traces = []
    with profile(
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=lambda p: traces.append(rows(p))
    ) as p:
        for _ in range(8):
            a @ b
            p.step()
    assert len(traces) == 2
    for trace in traces:
        kernel = next(e for (name, _), e in trace.items() if name.startswith("matmul_"))
        assert kernel.count == 2
        assert trace["ProfilerStep*", "CUDA"].count == 2


def test_stacks(matrices):
    with profile(with_stack=True, experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True)) as p:
        torch.nn.Linear(64, 8, device="mps")(matrices[0])
    stacks = [e for e in p.key_averages(group_by_stack_n=8) if e.key == "aten::linear"]
    assert stacks and any("test_torch_profiler.py" in line for line in stacks[0].stack)


@pytest.mark.parametrize("activities", [None, [ProfilerActivity.CPU], [ProfilerActivity.CPU, ProfilerActivity.CUDA]])
@pytest.mark.filterwarnings("error:.*CUDA")
def test_the_cpus_activity_is_enough(matrices, activities):
    with profile(activities=activities) as p:
        matrices[0].neg()
    assert p.use_device == "mps"
    assert any(name.startswith("neg") for name, _ in rows(p))


def test_autograd_profiler_takes_the_device_by_name(matrices):
    with torch.autograd.profiler.profile(use_device="mps", use_kineto=True) as p:
        matrices[0].neg()
    assert p.key_averages().total_average().device_time_total > 0


def test_nothing_is_taken_before_and_after(matrices):
    a, _ = matrices
    a.exp()
    with profile() as p:
        a.neg()
    a.sin()
    with profile() as second:
        a.cos()
    assert {n.split("_")[0] for n, device in rows(p) if device == "CUDA"} == {"neg"}
    assert {n.split("_")[0] for n, device in rows(second) if device == "CUDA"} == {"cos"}


def test_profile_of_torch_anymps_does_not_nest_in_it(matrices, capfd):
    with profile() as p:
        with pytest.raises(RuntimeError, match="profiles do not nest"), torch_anymps.profile():
            pass
        matrices[0].neg()
    assert any(name.startswith("neg") for name, _ in rows(p))
    with torch_anymps.profile() as own, profile():
        matrices[0].exp()
    assert "torch.profiler shows nothing of the mps device: A profile" in capfd.readouterr().err
    assert [k.name.split("_")[0] for k in own.kernels] == ["exp"]


def test_replayed_graphs_show_their_kernels(matrices, tmp_path):
    a, b = matrices
    c = torch.zeros(96, 32, device=a.device)
    graph = torch.accelerator.Graph()
    with graph:
        torch.mm(a, b, out=c)
        c.relu_()
    graph.replay()
    torch.mps.synchronize()
    with profile() as p:
        for _ in range(3):
            a.normal_()
            graph.replay()
    events = trace_of(p, tmp_path)
    torch.testing.assert_close(c, (a @ b).relu_())
    kernels = of_category(events, "kernel")
    names = [k["name"].split("_")[0] for k in sorted(kernels, key=lambda k: k["ts"])]
    assert [n for n in names if n in ("matmul", "relu")] == ["matmul", "relu"] * 3
    nodes = [k["args"]["graph node id"] for k in kernels if k["name"].startswith("relu")]
    assert len(nodes) == 3 and min(nodes) > 1
    ops = {e["args"]["External id"]: e["name"] for e in of_category(events, "cpu_op")}
    owners = {ops[k["args"]["External id"]] for k in kernels if "graph node id" in k["args"]}
    assert owners == {"torch.accelerator.Graph.replay"}
    calls = [e for e in of_category(events, "privateuse1_runtime") if e["name"] == "vkQueueSubmit (graph)"]
    assert len(calls) == 3
    for first, second in zip(kernels, kernels[1:], strict=False):
        assert second["ts"] >= first["ts"] + first["dur"] - 0.01


def test_a_graph_may_go_while_its_replay_is_profiled(matrices):
    x = torch.zeros(64, device=matrices[0].device)
    with profile() as p:
        for _ in range(20):
            graph = torch.accelerator.Graph()
            with graph:
                x += 1
            graph.replay()
            del graph
    assert x.eq(20).all()
    assert rows(p)["add_f32_dense", "CUDA"].count == 20


def test_many_commands(mps):
    x = torch.zeros(8, device=mps)
    with profile() as p:
        for _ in range(5000):
            x += 1
    assert x.eq(5000).all()
    assert rows(p)["add_f32_dense", "CUDA"].count == 5000


FIRST_USE = """
import sys, torch
from torch.profiler import profile
with profile() as p:
    x = torch.ones(1000, device="mps")
    for _ in range(3):
        x.neg().sum().item()
kernels = [e for e in p.events() if e.device_type.name == "CUDA" and e.name.startswith("neg")]
calls = [e for e in p.events() if e.name == "aten::neg"]
assert len(kernels) == len(calls) == 3, p.events()
assert [[k.name for k in call.kernels] for call in calls] == [[kernels[0].name]] * 3  # while it was being compiled, too
for kernel, call in zip(kernels, calls):
    lag = kernel.time_range.start - call.time_range.start
    assert -float(sys.argv[1]) < lag < 60e6, lag  # a compilation of the kernel
ends = [e.time_range.end for e in p.events() if e.name == "aten::item"]
assert all(k.time_range.end <= end + float(sys.argv[1]) for k, end in zip(kernels, ends))
"""


# Without calibrated timestamps the clocks are as near as a wait is short: on a busy machine some time slices.
@pytest.mark.parametrize(("caps", "microseconds"), [("", 200), ("minimal", 200_000)])
def test_the_device_may_be_opened_in_a_profile_and_lack_calibrated_timestamps(
    mps, caps, microseconds, tmp_path, run_python
):
    environment = {"ANYMPS_CACHE_DIR": str(tmp_path)} | ({"ANYMPS_CAPS": caps} if caps else {})
    done = run_python(FIRST_USE, str(microseconds), env=environment)
    assert done.returncode == 0, done.stderr


def test_a_program_without_the_device_does_not_open_it(run_python):
    code = (
        "import torch; from torch.profiler import profile\n"
        "with profile() as p: torch.ones(4).neg()\n"
        "assert not torch._C._accelerator_isAllocatorInitialized()\n"
        "assert 'MPS' not in p.key_averages().table()"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
