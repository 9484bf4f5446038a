"""torch.compile(mode="max-autotune"): Inductor measures the plans of products and convolutions, and calls the best."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code

import torch_anymps
from torch_anymps import inductor
from torch_anymps.inductor import plans

MODE = "max-autotune-no-cudagraphs"


@pytest.fixture(autouse=True)
def clean():
    counters.clear()
    with fresh_cache():
        yield


@pytest.fixture
def take(monkeypatch):
    """take(text): plans whose names have the text are the fastest."""

    inductor.register()  # its own benchmarker is there then

    def chosen(text):
        def milliseconds(_, call, **__):
            call()
            torch.mps.synchronize()
            return 1.0 if text in times.name else 2.0

        def benchmark(caller, *args, out):
            times.name = caller.name
            return original(caller, *args, out=out)

        original = plans.ExternKernelCaller.benchmark
        monkeypatch.setattr(plans.ExternKernelCaller, "benchmark", benchmark)
        monkeypatch.setitem(plans.benchmarking._BENCHMARK_DISPATCH, "mps", milliseconds)

    times = type("Times", (), {"name": ""})
    return chosen


@pytest.mark.parametrize("plan", ["register:16:0:1", "matrix_64x64x64:64:1:4", "register:8:0:2:3"])
def test_names_say_operator_and_plan(plan):
    for operator in plans.OPERATORS:
        assert plans.operator_and_plan(plans.name_of(operator, plan)) == (operator, plan)


def test_names_that_say_neither():
    with pytest.raises(ValueError, match="no plan"):
        plans.name_of("mm", "register")
    with pytest.raises(AttributeError, match="names no operator"):
        _ = plans.planned.softmax


CASES = {
    "mm": (lambda a, b: a @ b, [(40, 48), (48, 64)]),
    "addmm": (lambda a, b, c: torch.addmm(c, a, b), [(40, 48), (48, 64), (40, 64)]),
    "bmm": (lambda a, b: a @ b, [(3, 40, 48), (3, 48, 64)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [(2, 16, 12, 12), (32, 16, 3, 3)]),
}


@pytest.mark.parametrize("operator", CASES)
def test_the_fastest_plan_is_called(operator, mps, take):
    function, shapes = CASES[operator]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    take(f"{operator}_")
    on_mps = [x.to(mps) for x in inputs]
    result, (code,) = run_and_get_code(torch.compile(function, mode=MODE), *on_mps)
    assert f"mps_planned.{operator}_" in code
    expected = function(*inputs)  # convolutions on matrix units are right to 4e-6 of the largest result
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item() + 1e-5)


def test_the_plan_is_of_the_compiled_call_alone(mps, take):
    a, b = torch.randn(256, 256, device=mps), torch.randn(256, 256, device=mps)

    def splits(function):
        with torch_anymps.profile() as profile:
            function(a, b)
        return [kernel.shape for kernel in profile.kernels if "split-K" in (kernel.shape or "")]

    (planned,) = splits(torch.mm)
    other = 1 if planned.endswith("split-K 2") else 2
    take(f"_split{other}")
    compiled = torch.compile(torch.mm, mode=MODE)
    compiled(a, b)
    assert splits(compiled) == [f"1 of 256 x 256 x 256, split-K {other}"]
    assert splits(torch.mm) == [planned]


def test_times_are_taken_on_the_device(mps):
    a, b = torch.randn(64, 96, device=mps), torch.randn(96, 64, device=mps)
    timings = {}
    saver = lambda times, *_: timings.update({choice.name: time for choice, time in times.items()})  # noqa: E731
    torch._inductor.select_algorithm.add_feedback_saver(saver)
    try:
        result = torch.compile(torch.mm, mode=MODE)(a, b)
    finally:
        torch._inductor.select_algorithm.clear_feedback_savers()
    torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-4)
    assert "mm" in timings and sum(name.startswith("mm_") for name in timings) > 3
    assert all(0 < time < 1e4 for time in timings.values())
    assert counters["inductor"]["select_algorithm_autotune"] == 1


def test_times_are_kept(mps):
    a, b = torch.randn(64, 96, device=mps), torch.randn(96, 64, device=mps)
    torch.compile(torch.mm, mode=MODE)(a, b)
    before = counters["inductor"]["select_algorithm_autotune"]
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=False, fx_graph_cache=False):
        torch.compile(lambda x, y: torch.mm(x, y) + 1, mode=MODE)(a, b)
    assert counters["inductor"]["select_algorithm_autotune"] == before


def test_random_numbers_are_those_without_it(mps):
    a, b = torch.randn(64, 96, device=mps), torch.randn(96, 64, device=mps)
    torch.manual_seed(3)
    expected = torch.rand(5, device=mps)
    torch.manual_seed(3)
    torch.compile(torch.mm, mode=MODE)(a, b)
    assert torch.equal(torch.rand(5, device=mps), expected)


def test_replayed(mps, take):
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(mps)
    compiled = torch.compile(net, mode="max-autotune")
    take("register_m8")
    for _ in range(4):
        x = torch.randn(16, 32, device=mps)
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
        grads = [torch.autograd.grad(call(x).square().sum(), list(net.parameters())) for call in (compiled, net)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_plan_numbers_are_checked():
    with pytest.raises(RuntimeError, match="No plan has the number"):
        torch.ops.anymps.want_plan(60000)
