"""Zeros, infinities and NaN in generated kernels: what compilers would fold, and what Inductor would simplify."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees
from torch._inductor.utils import fresh_cache

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# What generated kernels compute in their own way; test_compiled_pointwise.py has the functions that eager ones share.
ODD = {
    name: getattr(torch, name) for name in ("ceil", "floor", "frac", "neg", "round", "sin", "sqrt", "tanh", "trunc")
} | {
    "celu": F.celu,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "silu": F.silu,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "cast": lambda t: t.half().float().bfloat16().to(t.dtype),
    "copysign": lambda t: torch.copysign(torch.zeros_like(t), t),
    "cube": lambda t: t**3,
    "difference": lambda t: t - 0.0,
    "fmod": lambda t: t.fmod(2),
    "inverse": lambda t: t**-1,
    "limits": lambda t: t.clamp(-1, 1),
    "product": lambda t: t * 3,
    "quotient": lambda t: t / 3,
    "negative quotient": lambda t: t / -3,
    "negative zero": lambda t: t + -0.0,
}


FEW = ("cast", "limits", "neg", "negative quotient", "product", "tanh")  # registers are float32 whatever the dtype


@pytest.mark.parametrize(
    "names, dtype, dynamic",
    [(ODD, torch.float32, None), (FEW, torch.float16, True), (FEW, torch.bfloat16, None)],
    ids=["float32", "float16, dynamic", "bfloat16"],
)
def test_odd_functions_keep_the_sign_of_zero(mps, names, dtype, dynamic):
    zeros = torch.tensor([0.0, -0.0, 1.0], dtype=dtype)
    compiled = torch.compile(lambda t: [ODD[name](t) for name in names], dynamic=dynamic, fullgraph=True)
    for name, got in zip(names, compiled(zeros.to(mps)), strict=True):
        want, eager = ODD[name](zeros), ODD[name](zeros.to(mps))
        assert got.signbit().tolist() == eager.signbit().tolist() == want.signbit().tolist(), name
        assert got[:2].cpu().equal(want[:2]), name


def sums(t):
    """Those of zeros are -0 where all terms are."""
    opposite = -t
    return [0.0 - t, *with_zero(t), -0.0 + t, -0.0 - t, (t + 1) - 1, t - t, t + opposite]


def with_zero(t):
    """From 2.15 on Inductor drops such a term before it generates code, of all devices."""
    return [t + 0.0, 0.0 + t, t - -0.0] if torch.__version__ < "2.15" else []


def extremes(t):
    """-0 is smaller than +0."""
    opposite = -t
    return [torch.maximum(t, opposite), torch.minimum(t, opposite), t.clamp(max=0.0), t.clamp(min=-0.0)]


@pytest.mark.parametrize("function", [sums, extremes])
def test_signs_of_zeros_are_eagers(mps, function):
    zeros = torch.tensor([0.0, -0.0], device=mps)
    got = torch.compile(function, fullgraph=True)(zeros)
    assert [t.signbit().tolist() for t in got] == [t.signbit().tolist() for t in function(zeros)]


EDGES = torch.tensor([0.0, -0.0, 1.0, -2.5, INF, -INF, NAN, 3e38, -3e38, 1e-3])


def masked(t):
    """A product with a condition, of which drivers make a selection."""
    return t * (t > 5), t * (t == 1).to(t.dtype), (t > 5) * t + t * -1


def opposite_terms(t):
    factor = t.abs() + 1
    return t + t * -1, 2 * t - t - t, t * factor + t * -factor


def constants(t):
    """Kept in their order: neither added nor multiplied with one another beforehand."""
    return (t + 12582912.0) - 12582912.0, 1 - (1 - t), t * 1e30 * 1e-30, t / 1e30 / 1e-30


def zeros(t):
    zero = torch.zeros_like(t)
    quotients = (t / 0, zero / t, t / zero, 0 / t, t * 0 / 0)
    return *quotients, t * 0, 0.0 * t, torch.addcmul(t, 0 * t, t), zero.reciprocal() * t, F.softshrink(t)


@pytest.mark.parametrize("function", [masked, opposite_terms, zeros])
def test_nothing_is_simplified_that_special_values_forbid(mps, function):
    compiled_agrees(lambda *tensors: [function(t) for t in tensors], *(EDGES.to(dtype) for dtype in FLOATS))


def test_operations_keep_their_order(mps):
    compiled_agrees(constants, EDGES)


def test_products_that_overflow_within_functions(mps):
    """The sine of pi times x; eager kernels know that it is 0 there."""
    compiled_agrees(lambda t: (torch.sinc(t), torch.sinc(t * 2)), EDGES.to(mps), equal=True)


def test_powers_of_special_values(mps):
    compiled_agrees(lambda t: [t**exponent for exponent in (-1.0, -0.5, 0.5, 1.5, -3, 0, 1, 5)], EDGES)


@pytest.mark.parametrize("dynamic", [None, True])
def test_variances_without_degrees_of_freedom(mps, dynamic):
    """Sums of squares over no degrees of freedom, or fewer: infinite, or NaN of a sum of 0."""

    def moments(t):
        corrections = (0, 1, 3, 3.5, 5)
        return [t.var(1, correction=c) for c in corrections], torch.std_mean(t, 0, correction=9), t[:, :1].std(1)

    compiled_agrees(moments, torch.tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0], [NAN, 1.0, 2.0]]), dynamic=dynamic)


def test_numbers_of_python_that_tracing_fixes(mps):
    """PyTorch's cache of traced graphs took the graph of another number where the graph is dynamic in it, too."""

    def function(x, number):
        return x * number, x // number, (x + number) % number

    compiled = torch.compile(function, dynamic=True)
    x = torch.arange(8.0, device=mps)
    with fresh_cache():
        for number in (2.5, 3.5, 1.5):
            for got, want in zip(compiled(x, number), function(x, number), strict=True):
                torch.testing.assert_close(got, want)
