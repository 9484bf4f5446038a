"""Norms that products of few rows do themselves, compiled: torch_anymps/inductor/norm_prologue.py."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from compiled import TOLERANCE, calls, compiled_agrees, kernel_count
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing import assert_close

from torch_anymps.inductor import graph_passes

pytestmark = pytest.mark.usefixtures("mps", "prologues")

WIDTH = 96
BF16 = torch.bfloat16


@pytest.fixture
def prologues(monkeypatch, slang):
    """Norms become prologues on software drivers, too, whose own choice is against it; matrix units do not matter."""
    config = dataclasses.replace(graph_passes.device_config(), software=False, matrix_units=True)
    monkeypatch.setattr(graph_passes, "device_config", lambda: config)


def rms_norm_written(x, weight, bias):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def rms_norm_of_wide_statistics(x, weight, bias):
    return weight * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(weight.dtype)


def rms_norm_by_power(x, weight, bias):
    wide = x.float()
    return wide * torch.pow((wide * wide).mean(-1, keepdim=True) + 1e-6, -0.5) * weight + bias


def layer_norm_written(x, weight, bias):
    wide = x.float()
    centered = wide - wide.mean(-1, keepdim=True)
    return weight * (centered / torch.sqrt(centered.pow(2).mean(-1, keepdim=True) + 1e-6)) + bias


def layer_norm_by_variance(x, weight, bias):
    wide = x.float()
    return bias + weight * ((wide - wide.mean(-1, True)) / (wide.var(-1, unbiased=False) + 1e-6).sqrt().unsqueeze(-1))


def rms_norm_of_float_means(x, weight, bias):
    return x * (x.pow(2).mean(-1, True, dtype=torch.float32) + 1e-6).rsqrt() * weight + bias


NORMS = {
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias),
    "layer_norm, no bias": lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight),
    "layer_norm, no weight": lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], eps=0.1),
    "rms_norm": lambda x, weight, bias: F.rms_norm(x, x.shape[-1:], weight, 1e-5),
    "rms_norm, no weight": lambda x, weight, bias: F.rms_norm(x, x.shape[-1:]),
    **{
        norm.__name__: norm
        for norm in (
            rms_norm_written,
            rms_norm_of_wide_statistics,
            rms_norm_by_power,
            rms_norm_of_float_means,
            layer_norm_written,
            layer_norm_by_variance,
        )
    },
}


def tensors(*shape, dtype=torch.float32, norm_dtype=None, columns=48):
    """Rows, a norm's weight and bias, a product's weight and bias."""
    torch.manual_seed(0)
    width = shape[-1]
    norm = (torch.randn(width).to(norm_dtype or dtype) for _ in range(2))
    return (
        torch.randn(shape).mul(2).add(1).to(dtype),
        *norm,
        torch.randn(columns, width).div(width**0.5).to(dtype),
        torch.randn(columns).to(dtype),
    )


def count(codes):
    """(products with a prologue, generated kernels)"""
    return calls(codes, "anymps.addmm_norm.default("), kernel_count(codes)


@pytest.mark.parametrize(
    "shape, dtype, norm_dtype",
    [((1, 1, 768), torch.float32, None), ((4, WIDTH), BF16, None), ((2, 2, WIDTH), BF16, torch.float32)],
)
@pytest.mark.parametrize("name", NORMS)
def test_norms(name, shape, dtype, norm_dtype):
    def function(x, weight, bias, w, b):
        return F.linear(NORMS[name](x, weight, bias).to(w.dtype), w, b)

    inputs = tensors(*shape, dtype=dtype, norm_dtype=norm_dtype)
    codes = compiled_agrees(function, *inputs, tolerance=2 * TOLERANCE.get(dtype, 2e-5))
    assert count(codes) == (1, 0)


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm])
def test_under_autocast(norm):
    x, weight, _, w, b = (t.to("mps") for t in tensors(1, 3, WIDTH))
    function = lambda x: F.linear(norm(x, x.shape[-1:], weight), w, b)
    with torch.autocast("mps", BF16), fresh_cache():
        result, codes = run_and_get_code(torch.compile(function, fullgraph=True), x)
        assert_close(result, function(x), rtol=3e-2, atol=3e-2)
    assert count(codes) == (1, 0)


def test_results_are_rounded_before_they_are_widened():
    function = lambda x, weight, bias, w, b: F.linear(F.layer_norm(x, x.shape[-1:], weight, bias), w).float()
    codes = compiled_agrees(function, *tensors(2, WIDTH, dtype=BF16), tolerance=3e-2)
    assert count(codes) == (1, 1)  # by a kernel, as in eager mode


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_steps_behind(dtype):
    function = lambda x, weight, bias, w, b: F.gelu(F.linear(F.rms_norm(x, x.shape[-1:], weight), w, b))
    codes = compiled_agrees(function, *tensors(2, WIDTH, dtype=dtype), tolerance=2 * TOLERANCE.get(dtype, 2e-5))
    assert count(codes) == (1, 0)


class Block(nn.Module):
    """Of a residual stream with gates: one norm feeds two products."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_residual_stream_has_no_kernels_left(dtype):
    """Its last sum is stored by the product before it, as the last norm is done by the product behind it."""
    model = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)).eval()
    x = torch.randn(1, 1, WIDTH)
    expected = model(x)
    model, x = model.to("mps", dtype), x.to("mps", dtype)
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(torch.compile(model, fullgraph=True), x)
    limit = 2 * TOLERANCE.get(dtype, 2e-5)
    assert_close(result.cpu().float(), expected, rtol=limit, atol=limit)
    assert count(codes) == (5, 0)


OTHERS = {
    "a norm that is a result": lambda x, weight, bias, w, b: (
        F.linear(y := F.layer_norm(x, x.shape[-1:], weight, bias), w),
        y,
    ),
    "a norm that is an operand": lambda x, weight, bias, w, b: (
        F.linear(y := F.rms_norm(x, x.shape[-1:], weight), w)[:, :1] + y
    ),
    "a norm that another operator reads": lambda x, weight, bias, w, b: (
        F.linear(y := F.layer_norm(x, x.shape[-1:], weight, bias), w, b).mean() + y.sin()
    ),
    "statistics that are a result": lambda x, weight, bias, w, b: (
        F.linear((x - (mean := x.mean(-1, True))) * (x.var(-1, correction=0, keepdim=True) + 0.1).rsqrt(), w),
        mean,
    ),
    "an unbiased variance": lambda x, weight, bias, w, b: F.linear(
        (x - x.mean(-1, True)) * (x.var(-1, keepdim=True) + 0.1).rsqrt(), w
    ),
    "the largest element": lambda x, weight, bias, w, b: F.linear(
        x * (x.pow(2).amax(-1, keepdim=True) + 0.1).rsqrt(), w
    ),
    "a mean of fourth powers": lambda x, weight, bias, w, b: F.linear(
        x * (x.pow(4).mean(-1, keepdim=True) + 0.1).rsqrt(), w
    ),
    "the norm of other rows": lambda x, weight, bias, w, b: F.linear(
        x * (x.flip(0).pow(2).mean(-1, keepdim=True) + 0.1).rsqrt(), w
    ),
    "two dimensions": lambda x, weight, bias, w, b: F.linear(F.layer_norm(x, x.shape), w, b),
    "groups of a row": lambda x, weight, bias, w, b: F.linear(F.group_norm(x, 4, weight, bias), w, b),
    "columns": lambda x, weight, bias, w, b: F.linear(F.layer_norm(x.t(), x.shape[:1]).t(), w, b),
    "rows that a kernel computes": lambda x, weight, bias, w, b: F.linear(
        F.layer_norm(x.sin(), x.shape[-1:], weight, bias), w, b
    ),
    "a weight that a kernel computes": lambda x, weight, bias, w, b: F.linear(
        F.rms_norm(x, x.shape[-1:]) * (weight + 1), w, b
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_to_a_kernel(name):
    assert count(compiled_agrees(OTHERS[name], *tensors(2, WIDTH)))[0] == 0


@pytest.mark.parametrize(
    "shape, expected",
    [((4, 1024), 1), ((1, 4096), 1), ((2, 1028), 0), ((1, 4100), 0), ((5, WIDTH), 0), ((1, 98), 0)],
)
def test_sizes(shape, expected):
    function = lambda x, weight, bias, w, b: F.linear(F.layer_norm(x, x.shape[-1:], weight, bias), w, b)
    codes = compiled_agrees(function, *tensors(*shape, columns=8), tolerance=1e-4)
    assert count(codes) == (expected, 1 - expected)


@pytest.mark.parametrize("columns, expected", [(20, 1), (21, 0)])
def test_weights_that_are_contiguous_along_columns(columns, expected):
    function = lambda x, weight, bias, w, b: torch.addmm(b, F.layer_norm(x, x.shape[-1:], weight, bias), w)
    x, weight, bias, w, b = tensors(3, WIDTH, columns=columns)
    codes = compiled_agrees(function, x, weight, bias, w.t().contiguous(), b)
    assert count(codes) == (expected, 1 - expected)


SQUARES = {
    "numbers of rows as those of columns": lambda x, w: F.linear(x * (x.pow(2).mean(-1) + 0.1).rsqrt(), w),
    "numbers of columns": lambda x, w: F.linear(x * (x.pow(2).mean(0) + 0.1).rsqrt()[:, None], w),
    "a norm that is the other factor, too": lambda x, w: (y := F.rms_norm(x, (4,))) @ y.t() + w,
    "a norm that is the summand, too": lambda x, w: torch.addmm(y := F.rms_norm(x, (4,)), y, w),
}


@pytest.mark.parametrize("name", SQUARES)
def test_as_many_rows_as_columns(name):
    assert count(compiled_agrees(SQUARES[name], torch.rand(4, 4) + 0.5, torch.randn(4, 4)))[0] == 0


def test_rows_and_weights_that_change_afterwards():
    def function(x, weight, bias, w, b):
        before = F.linear(F.rms_norm(x, x.shape[-1:], weight), w)
        x.add_(1)
        weight.mul_(2)
        return before, F.linear(F.rms_norm(x, x.shape[-1:], weight), w)

    assert count(compiled_agrees(function, *tensors(2, WIDTH), tolerance=1e-4))[0] == 1


@pytest.mark.parametrize("dimension", [0, 1])
def test_dynamic_sizes(dimension):
    function = lambda x, w: F.linear(F.layer_norm(x, x.shape[-1:]), w)
    x, w = torch.randn(3, 24, device="mps"), torch.randn(8, 24, device="mps")
    for tensor in (x, w) if dimension else (x,):
        torch._dynamo.mark_dynamic(tensor, dimension)
    with fresh_cache():
        result, codes = run_and_get_code(torch.compile(function, fullgraph=True), x, w)
    assert_close(result, function(x, w), rtol=1e-4, atol=1e-4)
    assert count(codes)[0] == 0


def test_training_keeps_its_norms():
    """Gradients read them."""
    function = lambda x, weight, bias, w, b: F.linear(F.layer_norm(x, x.shape[-1:], weight, bias), w, b)
    inputs = [t.requires_grad_() for t in tensors(2, WIDTH)]
    assert count(compiled_agrees(function, *inputs, backward=True, tolerance=1e-4))[0] == 0


def test_rounding_as_in_eager_mode_and_software_drivers(monkeypatch):
    function = lambda x, weight, bias, w, b: F.linear(F.layer_norm(x, x.shape[-1:], weight, bias), w, b)
    with torch._inductor.config.patch(emulate_precision_casts=True):
        assert count(compiled_agrees(function, *tensors(2, WIDTH))) == (0, 1)
    config = dataclasses.replace(graph_passes.device_config(), software=True)
    monkeypatch.setattr(graph_passes, "device_config", lambda: config)
    assert count(compiled_agrees(function, *tensors(2, WIDTH))) == (0, 1)
