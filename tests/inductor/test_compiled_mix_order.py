"""Row and column reductions of the same tensors as one kernel, as GPUs get it: torch_anymps/inductor/mix_order.py."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from compare import SOFTMAX as TOLERANCE
from compiled import kernel_count
from torch import nn
from torch._inductor import config, metrics
from torch._inductor.utils import fresh_cache, run_and_get_code

from torch_anymps.inductor import mix_order
from torch_anymps.inductor.device import DeviceConfig

NORMS = {
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
    "rms_norm": lambda x, weight, bias: F.rms_norm(x, weight.shape, weight) * bias,
}


@pytest.fixture
def small_tensors(monkeypatch):
    monkeypatch.setattr(mix_order, "MIN_ELEMENTS", 1)


def gradients(function, inputs, device, dtype=None):
    """For random gradients of the result; inputs on another device, or of another dtype."""
    leaves = [t.to(device, dtype or t.dtype, copy=True).requires_grad_() for t in inputs]
    result = function(*leaves)
    given = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(inputs[0].dtype)
    return torch.autograd.grad(result, leaves, given.to(device, result.dtype))


def check(function, inputs, dynamic=False) -> list[str]:
    """Gradients of a compiled function are those of float64 on the CPU. Returns the generated modules."""
    torch._dynamo.reset()
    metrics.reset()
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    with fresh_cache():
        got, codes = run_and_get_code(lambda: gradients(compiled, inputs, "mps"))
    compare(got, gradients(function, inputs, "cpu", torch.float64), inputs)
    return codes


def compare(got, want, inputs):
    limit = max(TOLERANCE[t.dtype] for t in inputs)
    for actual, expected, given in zip(got, want, inputs, strict=True):
        assert actual.dtype == given.dtype
        assert difference(actual, expected) <= limit


def difference(actual, expected) -> float:
    """The largest one, over the largest of the expected numbers."""
    return float((actual.cpu().double() - expected).abs().max() / expected.abs().max())


def norm_inputs(*shape, dtype=torch.float32, parameters=None):
    torch.manual_seed(0)
    columns = shape[-1]
    return [torch.randn(shape).to(dtype), *(torch.randn(columns).to(parameters or dtype) for _ in range(2))]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(600, 96), (601, 129), (3, 211, 200)], ids=str)
def test_gradients_of_norms(as_a_gpu, small_tensors, norm, shape, dtype):
    codes = check(NORMS[norm], norm_inputs(*shape, dtype=dtype))
    assert metrics.codegen_mix_order_reduction == 1
    assert kernel_count(codes[-1:]) == 2 and "column_reduce<Sum" in codes[-1]


def test_parameters_of_float32(as_a_gpu, small_tensors):
    check(NORMS["layer_norm"], norm_inputs(600, 96, dtype=torch.bfloat16, parameters=torch.float32))
    assert metrics.codegen_mix_order_reduction == 1


def test_rows_of_any_number(as_a_gpu, small_tensors):
    def function(x, weight, bias):
        torch._dynamo.mark_dynamic(x, 0)
        return compiled(x, weight, bias)

    torch._dynamo.reset()
    metrics.reset()
    compiled = torch.compile(NORMS["layer_norm"], fullgraph=True)
    with fresh_cache():
        for rows in (600, 65, 1, 4099):
            inputs = norm_inputs(rows, 96)
            got = gradients(function, inputs, "mps")
            compare(got, gradients(NORMS["layer_norm"], inputs, "cpu", torch.float64), inputs)
    assert metrics.codegen_mix_order_reduction == 1


def test_a_residual(as_a_gpu, small_tensors):
    """What follows joins the kernel: sums and other elements."""

    def function(x, weight, bias, residual):
        h = x + residual
        return NORMS["layer_norm"](h, weight, bias) * 2 + h

    inputs = norm_inputs(600, 96, dtype=torch.bfloat16)
    codes = check(function, [*inputs, torch.randn(600, 96).bfloat16()])
    assert metrics.codegen_mix_order_reduction == 1 and kernel_count(codes[-1:]) == 2


def test_rows_as_many_as_columns(as_a_gpu, small_tensors):
    check(NORMS["layer_norm"], norm_inputs(200, 200))
    assert metrics.codegen_mix_order_reduction == 1


def test_networks(as_a_gpu, small_tensors):
    layer = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True, norm_first=True).train()
    network = nn.Sequential(layer, nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.RMSNorm(64))
    named = dict(network.named_parameters())
    names, inputs = list(named), [torch.randn(5, 60, 64), *(p.detach() for p in named.values())]

    def function(x, *parameters):
        return torch.func.functional_call(network, dict(zip(names, parameters)), (x,))

    check(function, inputs)
    assert metrics.codegen_mix_order_reduction == 4


def test_sums_that_end_in_one_kernel_with_others(as_a_gpu, small_tensors):
    """Their number of terms cannot change, so that rows and columns stay two kernels."""

    def function(x, y):
        scale = x.sum(1, keepdim=True)
        return (x - scale).exp(), x.sum(0) + y.sum(0)

    x, y = torch.randn(600, 96) / 10, torch.randn(600, 96)
    torch._dynamo.reset()
    metrics.reset()
    with fresh_cache():
        got = torch.compile(function)(x.to("mps"), y.to("mps"))
    for actual, expected in zip(got, function(x.double(), y.double()), strict=True):
        assert difference(actual, expected) <= TOLERANCE[torch.float32]
    assert metrics.codegen_mix_order_reduction == 0


def test_columns_of_what_rows_give(as_a_gpu, small_tensors):
    def function(x):
        return (x / x.sum(1, keepdim=True)).sum(0)

    check(function, [torch.rand(600, 96) + 1])
    assert metrics.codegen_mix_order_reduction == 0


@pytest.mark.parametrize("reason", ["few rows", "little to read", "configuration", "long rows"])
def test_two_kernels(as_a_gpu, monkeypatch, reason):
    monkeypatch.setattr(mix_order, "MIN_ELEMENTS", 1 << 20 if reason == "little to read" else 1)
    if reason == "long rows":
        few = dataclasses.replace(as_a_gpu, registers=8)
        monkeypatch.setattr(mix_order, "device_config", lambda: few)
    rows = 63 if reason == "few rows" else 600
    with config.patch("triton.mix_order_reduction", reason != "configuration"):
        check(NORMS["layer_norm"], norm_inputs(rows, 96))
    assert metrics.codegen_mix_order_reduction == 0


def test_software_drivers_keep_two_kernels(mps, small_tensors):
    from torch_anymps.inductor.device import device_config

    if not device_config().software:
        pytest.skip("a GPU has one kernel")
    check(NORMS["layer_norm"], norm_inputs(600, 96))
    assert metrics.codegen_mix_order_reduction == 0


def test_teams(monkeypatch):
    """Threads of a row on a large GPU: as many as have the registers for it."""
    gpu = DeviceConfig("", "", False, 256, 32, 4, 132, 255, True, True)
    monkeypatch.setattr(mix_order, "device_config", lambda: gpu)
    teams = {n: mix_order.team_geometry(n, 5) for n in (64, 768, 1023, 1024, 4096, 8192)}
    threads = {n: team and team.threads_per_row for n, team in teams.items()}
    assert threads == {64: 16, 768: 64, 1023: 64, 1024: 64, 4096: 256, 8192: None}
    assert mix_order.group_count(8192, teams[768]) == 256
    assert mix_order.group_count(3, teams[768]) == 1
    small = dataclasses.replace(gpu, registers=64)
    monkeypatch.setattr(mix_order, "device_config", lambda: small)
    teams = {n: mix_order.team_geometry(n, 5) for n in (64, 768, 1024, 4096)}
    threads = {n: team and team.threads_per_row for n, team in teams.items()}
    assert threads == {64: 16, 768: 256, 1024: 256, 4096: None}
