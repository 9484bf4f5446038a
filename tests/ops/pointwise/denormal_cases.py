"""Subnormal floats keep their order, their difference from zero and their bits on devices that flush them.

Run by test_denormals.py in processes of their own. With ANYMPS_TEST_FLUSHED a software driver flushes, too: its threads
begin with the modes of the processor that the thread has which starts them.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from test_complex import test_extremal_values  # noqa: F401

FLUSHED = "ANYMPS_TEST_FLUSHED" in os.environ
torch.set_flush_denormal(FLUSHED)

SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
SUBNORMALS = {torch.float32: 2**23, torch.bfloat16: 2**7, torch.float16: 2**10}
DTYPES = list(SMALLEST)


@pytest.fixture(scope="module", autouse=True)
def only_the_device_flushes(request, mps):
    torch.ones(1, device=mps).add(1).cpu()  # its threads have been started
    torch.set_flush_denormal(False)
    assert torch.full((1,), 1e-39).mul(1.5).item() != 0
    assert not FLUSHED or request.getfixturevalue("flushes")


def numbers(dtype, *shape, seed=0, zeros=True, nan=False):
    """Mostly subnormal numbers of both signs, many of them more than once."""
    generator = torch.Generator().manual_seed(seed)
    units = torch.randint(1, min(SUBNORMALS[dtype], 200), shape, generator=generator)
    units = units * torch.randint(0, 2, shape, generator=generator).mul(2).sub(1)
    x = (units.double() * SMALLEST[dtype]).to(dtype)
    kind = torch.randint(0, 8, shape, generator=generator)
    x[kind == 0] *= 1000
    if zeros:
        x[kind == 1] = 0
        x[kind == 2] = -0.0
    if nan:
        x[torch.rand(shape, generator=generator) < 0.1] = torch.nan
    return x


def flat(result) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [t for part in result for t in flat(part)]


def bits(t: torch.Tensor) -> torch.Tensor:
    t = t.detach().cpu()
    if not t.is_floating_point():
        return t
    t = torch.where(t.isnan(), torch.ones_like(t), t)
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def same(function, *operands, zeros_are_equal=False):
    """Checks that function(device, *operands) gives the same bits on both devices."""
    expected = flat(function(*operands))
    actual = flat(function(*(x.to("mps") for x in operands)))
    assert len(expected) == len(actual)
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "mps" and a.dtype == e.dtype and a.shape == e.shape
        a, e = a.cpu(), e.detach()
        if zeros_are_equal and e.is_floating_point():
            a, e = torch.where(a == 0, 0, a), torch.where(e == 0, 0, e)
        wrong = (bits(a) != bits(e)).nonzero()
        assert wrong.numel() == 0, f"at {wrong[0].tolist()}: {a[tuple(wrong[0])]} and not {e[tuple(wrong[0])]}"


def gradient(function, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


COMPARISONS = {
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum")},
    **{name: getattr(torch, name) for name in ("logical_and", "logical_or", "logical_xor", "fmax", "fmin")},
    "logical_not": lambda x, y: x.logical_not(),
    "bool": lambda x, y: (x.bool(), x.t().bool(), x.byte().bool()),
    "zero": lambda x, y: (x == 0, x != 0, x > 0, x < 0, x >= 0, x <= 0),
    "number": lambda x, y: (x > 3 * SMALLEST[x.dtype], x == 3 * SMALLEST[x.dtype]),
    "broadcast": lambda x, y: (x < y[:1], x.t() == y.t()[:, :1]),
    "sign": lambda x, y: (x.sign(), x.sgn(), x.signbit(), x.angle()),
    "predicates": lambda x, y: (x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf()),
    "round": lambda x, y: (x.floor(), x.ceil(), x.trunc(), x.round()),
    "heaviside": torch.heaviside,
    "nextafter": torch.nextafter,
    "frexp": lambda x, y: torch.frexp(x),
    "where": lambda x, y: (torch.where(x > y, x, y), torch.where(x.bool(), y, x)),
    "moved": lambda x, y: (x.clone(), x.t().contiguous(), x.flip(0), x.roll(1, 1), torch.cat([x, y], 1), x.abs(), -x),
    "masked": lambda x, y: (x.masked_fill(y > 0, 1), x.masked_select(y < 0), x.nonzero(), x.copysign(y)),
    "clamp": lambda x, y: (x.clamp(min=0), x.clamp(max=0), x.clamp(y.clamp(max=0), y.abs())),
    "activations": lambda x, y: (x.relu(), F.threshold(x, 0, 1), F.hardshrink(x, 0), F.hardtanh(x, 0, 6)),
    "prelu": lambda x, y: (F.leaky_relu(x.abs(), 0.5), F.prelu(x.abs(), y[0, :1])),
    "equal": lambda x, y: torch.tensor([torch.equal(x, y), torch.equal(x, x.clone())], device=x.device),
}


EITHER_ZERO = {"round", "maximum", "minimum", "fmax", "fmin", "clamp", "activations"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name, dtype):
    nan = name not in ("nextafter", "sign")
    for shape in ((37, 11), (64, 64)):
        x, y = numbers(dtype, *shape, nan=nan), numbers(dtype, *shape, seed=1, nan=nan)
        same(COMPARISONS[name], x, y, zeros_are_equal=name in EITHER_ZERO)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_activations(dtype):
    functions = [torch.relu, lambda x: F.leaky_relu(x, 0.5), lambda x: F.hardtanh(x, 0, 6)]
    functions += [lambda x: F.threshold(x, 0, 1), lambda x: F.elu(x, 2.0), lambda x: F.hardshrink(x, 0)]
    x = numbers(dtype, 37, 11)
    for function in functions:
        same(lambda x, function=function: gradient(function, x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_conversions(dtype):
    same(lambda x: (x.float(), x.float().to(dtype), x.bool(), x.int()), numbers(dtype, 400))
    same(lambda x: (x.to(dtype), x.to(torch.complex64).real, x.bool().to(dtype)), numbers(torch.float32, 400))


def test_complex():
    x = torch.complex(numbers(torch.float32, 37, 11), numbers(torch.float32, 37, 11, seed=1))
    y = torch.complex(x.real, numbers(torch.float32, 37, 11, seed=2))
    same(lambda x, y: (x == y, x != y, x == 0, x.bool(), x.logical_not(), x.logical_and(y)), x, y)
    same(lambda x, y: (x.any(0), x.all(1), x.count_nonzero(), x.nonzero(), torch.linalg.vector_norm(x, 0)), x, y)


REDUCTIONS = {
    "any": lambda x, d: (x.any(d), x.all(d), x[:1].any(), x.all(), x.count_nonzero(d), x.sum(d, dtype=torch.bool)),
    "amax": lambda x, d: (x.amax(d), x.amin(d), x.amax(), x.amin(), *torch.aminmax(x, dim=d), *torch.aminmax(x)),
    "max": lambda x, d: (*x.max(d), *x.min(d), x.max(), x.min()),
    "argmax": lambda x, d: (x.argmax(d), x.argmin(d), x.argmax(), x.argmin()),
    "norm": lambda x, d: [torch.linalg.vector_norm(x, p, d) for p in (0, float("inf"), -float("inf"))],
    "cummax": lambda x, d: (*x.cummax(d), *x.cummin(d)),
}


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dtype, nan):
    for shape in ((37, 11), (3, 4100), (4100, 8)):
        x = numbers(dtype, *shape, nan=nan)
        for dim in (0, 1):
            same(lambda x, dim=dim: REDUCTIONS[name](x, dim), x, zeros_are_equal=name not in ("max", "cummax"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_of_a_single_sign(dtype):
    y = numbers(dtype, 5, 300, zeros=False).abs()
    for x in (y, -y, -y * 0, *(torch.full_like(y, v) for v in (-torch.inf, torch.inf, torch.nan))):
        same(lambda x: (x.amax(1), x.amin(1), *torch.aminmax(x, dim=1), *x.max(1), *x.min(1), x.argmin(0)), x)


def test_first_nan_of_either_sign():
    x = torch.tensor([[1.0, -torch.nan, torch.nan, 2.0], [-torch.inf, torch.nan, -torch.nan, -torch.inf]])
    x.view(torch.int32)[1, 2] = -0x7FFFFF  # the NaN next to -infinity
    same(lambda x: (*x.max(1), *x.min(1), x.argmax(0), x.argmin(0), x.amax(1), x.amin(1), *torch.aminmax(x, dim=1)), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_foreach(dtype):
    lists = [numbers(dtype, n) for n in (5, 300)]
    same(lambda *x: torch._foreach_norm(list(x), float("inf")), *lists)
    same(lambda *x: (*torch._foreach_maximum(list(x), 0), *torch._foreach_sign(list(x))), *lists, zeros_are_equal=True)


ORDERS = {
    "sort": lambda x: (*x.sort(dim=1, stable=True), *x.sort(dim=0, descending=True, stable=True)),
    "topk": lambda x: (x.topk(5, 1).values, x.topk(5, 1, largest=False).values),
    "kthvalue": lambda x: (x.kthvalue(3, 1).values, x.median(1).values, x.nanmedian(1).values, x.median()),
    "mode": lambda x: x.mode(1).values,
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique_values": lambda x: torch.unique(x),
    "unique_consecutive": lambda x: torch.unique_consecutive(x, return_counts=True),
    "unique_rows": lambda x: torch.unique(x[:, :1], dim=0, return_inverse=True),
    "searchsorted": lambda x: [torch.searchsorted(x.sort(1).values, x, right=right) for right in (False, True)],
    "bucketize": lambda x: [torch.bucketize(x, x[0].sort().values, right=right) for right in (False, True)],
    "isin": lambda x: [torch.isin(x, s) for s in (x[0, :1], x[0, :9], x[1, :30])],
    "nonzero": lambda x: (x.nonzero(), x[x > 0], x.flatten().nonzero_static(size=10)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ORDERS)
def test_order(name, dtype):
    for shape in ((9, 40), (2, 3000)):
        same(ORDERS[name], numbers(dtype, *shape, zeros=False), zeros_are_equal=True)
        same(lambda x: ORDERS[name](x.abs().maximum(x[:, :1])), numbers(dtype, *shape), zeros_are_equal=True)


def test_long_search():
    rows = numbers(torch.float32, 200_000, zeros=False).mul(1000).sort().values
    same(lambda rows, v: [torch.searchsorted(rows, v, right=right) for right in (False, True)], rows, rows[::3].flip(0))


def test_bounds_of_a_histogram():
    same(lambda x: torch.histc(x, 4, 0, 1), torch.tensor([-1e-45, -1e-40, 0.0, 1e-45, 0.5, 1.0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_scatter(reduce, dtype):
    x, source = numbers(dtype, 40, 6, zeros=False), numbers(dtype, 200, 6, seed=1, nan=True)
    index = torch.randint(0, 40, (200,), generator=torch.Generator().manual_seed(2))
    wide = index[:, None].expand(200, 6).contiguous()
    same(lambda x, s, i: x.scatter_reduce(0, i, s, reduce), x, source, wide, zeros_are_equal=True)
    same(lambda x, s, i: x.index_reduce(0, i, s, reduce), x, source, index, zeros_are_equal=True)
    same(lambda x, s, i: (s[i], x.index_copy(0, i[:1], s[:1]), s.gather(0, i[:, None])), x, source, index)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_segments(reduce, dtype):
    lengths = torch.tensor([3, 0, 20, 17])
    x = numbers(dtype, 40, 3, zeros=False)
    same(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=0, unsafe=True), x, lengths)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_bag(dtype):
    index = torch.randint(0, 40, (7, 9), generator=torch.Generator().manual_seed(2))
    same(lambda x, i: F.embedding_bag(i, x, mode="max"), numbers(dtype, 40, 6, zeros=False), index)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_max_pool(dtype):
    image = numbers(dtype, 2, 3, 14, 14)
    for x in (image, image.contiguous(memory_format=torch.channels_last)):
        same(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
        same(lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), x)
    samples = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(1)).to(dtype)
    same(lambda x, s: F.fractional_max_pool2d(x, 2, (5, 5), return_indices=True, _random_samples=s), image, samples)
