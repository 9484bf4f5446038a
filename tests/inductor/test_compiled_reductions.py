"""Reductions in generated kernels: alone, several in a loop, along rows and columns, with what is around them."""

import math

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees, kernel_count

SHAPES = ((70, 300), (5, 4096), (3000, 257), (1, 10), (4096, 4), (33, 768))


@pytest.mark.parametrize("shape", SHAPES)
def test_kinds(mps, shape):
    compiled_agrees(
        lambda a: (a.mean(1), a.amax(0), a.amin(1), a.var(-1), (a > 0).any(0), (a > -9).all(1), a.sum(0), a.sum()),
        torch.randn(shape),
        tolerance=1e-4,
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_long_sums_are_exact_to_a_few_roundings(mps, dynamic):
    """Of 16,384 terms of one sign, where a running sum of float32 is off by 3e-6 or more."""
    a = torch.rand(16384, 520)

    @torch.compile(dynamic=dynamic)
    def sums(a):
        return a.sum(0), a.T.contiguous().sum(1), (a * 2).sum(0).mul(0.5)

    for got in sums(a.to("mps")):
        torch.testing.assert_close(got.cpu().double(), a.double().sum(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [70, 1001, 4190])
def test_moments_of_equal_numbers_are_exact(mps, size):
    a = torch.rand(33, 1).expand(33, size).contiguous().to(mps)
    var, mean = torch.compile(lambda a: torch.var_mean(a, 1, correction=0))(a)
    assert torch.equal(mean, a[:, 0]) and not var.any()
    b = torch.compile(lambda a: F.layer_norm(a, (size,)))(a)
    assert not b.any()


@pytest.mark.parametrize("size", [9001, 9002, 9003, 9004])
def test_rows_of_whole_vectors_and_a_few_elements(mps, size):
    """Aligned rows, as Inductor pads them, whose length is no multiple of four; what is behind a row stays."""
    whole = torch.randn(7, size + -size % 8 + 8)

    def rows(a):
        b = a[:, :size]
        c = (b.softmax(-1), b.sum(-1), b.var(-1), b.argmax(-1), b.amin(-1), F.layer_norm(b, b.shape[-1:]))
        a[:, :size] = b - b.logsumexp(-1, keepdim=True)
        return a, *c

    on_mps = whole.to(mps)
    for got, expected in zip(torch.compile(rows)(on_mps), rows(whole), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(on_mps.cpu(), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_positions(mps, shape):
    """The first of equal values, and of NaN."""
    a = torch.randint(-20, 20, shape).float()
    a[0, -1] = float("nan")
    compiled_agrees(lambda a: (a.argmax(-1), a.argmin(0), a.argmax()), a)
    compiled_agrees(lambda a: (a.argmax(-1), a.argmin(0)), torch.randint(-5, 5, shape))


def test_position_of_a_maximum_in_transposed_memory(mps):
    a = torch.randn(6, 5, 7)

    def positions(a):
        b = a.permute(2, 0, 1)
        return b.argmax(), b.argmin(), (b * 2).argmax(), b.flatten(1).argmin(1), a.tan().mT.argmax(), a[::2].argmin()

    compiled_agrees(positions, a)
    compiled_agrees(lambda a: (a.mul_(2), a.t().argmin())[1], torch.randn(128, 64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.int64])
def test_dtypes(mps, dtype):
    a = torch.randint(0, 3, (40, 96)).to(dtype)
    compiled_agrees(lambda a: (a.sum(1), a.sum(0), a.amax(1), a.prod(1)), a)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
def test_any_and_all(mps, dtype):
    """Of uint8 they are uint8."""
    a = (torch.randint(0, 9, (40, 6)) < 3).to(dtype)
    compiled_agrees(
        lambda a: [f(a.bitwise_not(), *dims) for f in (torch.any, torch.all) for dims in ((), (1,), ((0, 1),))], a
    )


def test_products_and_norms(mps):
    a = torch.rand(40, 33) + 0.5
    compiled_agrees(lambda a: (a.prod(1), a.norm(dim=1), a.logsumexp(0), a.std(1), a.std(0)), a, tolerance=2e-5)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("width", [300, 1024, 5000, 9])
def test_softmax(mps, width, dynamic):
    codes = compiled_agrees(
        lambda a, m: torch.softmax(a * 0.3 + m, -1), torch.randn(64, width), torch.randn(width), dynamic=dynamic
    )
    assert kernel_count(codes) == 1
    compiled_agrees(lambda a: torch.log_softmax(a, 0), torch.randn(64, width), dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [300, 768, 2500])
def test_layer_norm_with_activation_and_residual(mps, width, dtype):
    a, w, b = torch.randn(64, width).to(dtype), torch.randn(width).to(dtype), torch.randn(width).to(dtype)
    codes = compiled_agrees(lambda a, w, b: F.silu(F.layer_norm(a, (width,), w, b)) + a, a, w, b)
    assert kernel_count(codes) == 1


def test_norms_backward(mps):
    a, w, b = (torch.randn(s, requires_grad=True) for s in ((64, 96), (96,), (96,)))
    compiled_agrees(lambda a, w, b: F.gelu(F.layer_norm(a, (96,), w, b)) + a, a, w, b, backward=True, tolerance=1e-4)
    compiled_agrees(
        lambda a, w: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * w, a, w, backward=True, tolerance=1e-4
    )


def test_shifted_variance_keeps_its_digits(mps):
    a = torch.randn(16, 1000) + 1000
    compiled_agrees(lambda a: torch.var_mean(a, -1), a, tolerance=2e-3)


def test_columns_with_few_rows(mps):
    compiled_agrees(lambda a: ((a * a).sum((0, 2)), a.amax((0, 2))), torch.randn(8, 24, 50), tolerance=1e-4)


def test_empty_rows(mps):
    compiled_agrees(lambda a: (a.sum(1), a.sum(), (a > 0).any(1)), torch.randn(4, 0))
    compiled_agrees(lambda a: (a.sum(1), a.amax(1)), torch.randn(0, 4))


LONG = 50257  # of GPT-2's vocabulary: more than registers hold, and no multiple of a vector


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_of_long_rows(mps, dtype):
    x = (20 * torch.randn(3, LONG)).to(dtype)
    x[1, :100] = -math.inf
    x[1, LONG - 1] = 300.0
    compiled_agrees(lambda t: torch.log_softmax(t.float(), -1), x, backward=False)
    compiled_agrees(lambda t: torch.softmax(t, -1), x)


def test_softmax_of_long_rows_that_are_not_finite(mps):
    x = torch.randn(5, LONG)
    x[0, 7], x[1, 9], x[2] = math.nan, math.inf, -math.inf
    x[3, 1:] = -math.inf
    compiled_agrees(lambda t: torch.log_softmax(t, -1), x)


@pytest.mark.parametrize("shape", [(3, LONG), (2, 4 * 8192), (40, 300, 24), (2000, 33)])
def test_sums_that_read_ahead(mps, shape):
    """Rows, columns and both, of lengths that leave a rest."""
    x = torch.randn(shape)
    for dim in range(len(shape)):
        compiled_agrees(lambda t, d=dim: ((t * 2 + 1).sum(d), t.amax(d), (t * t).mean(d)), x)
    compiled_agrees(lambda t: (t - t.mean(-1, keepdim=True)).abs().sum(-1, keepdim=True) * t, x, tolerance=2e-4)


@pytest.mark.parametrize("sizes", ((64, 20), (3, 5, 100), (2, 3000)))
def test_threads_of_a_row_know_the_same_moments(mps, sizes):
    """The backward kernel finds the largest elements as equal to the stored ones: of none the gradient is 0 / 0."""

    def function(x):
        y = F.layer_norm(x * x, x.shape[-1:])
        return y - y.amax(-1, keepdim=True) * 0.5

    compiled_agrees(function, torch.randn(sizes, requires_grad=True), backward=True, tolerance=1e-4)
