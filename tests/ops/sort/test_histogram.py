"""histogram and histogramdd: edges, ranges, weights, density."""

import math

import pytest
import torch
from both_devices import agree, layouts


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_histogram(density, weighted, mps, no_fallback):
    weight = torch.rand(6, 40) if weighted else None

    def call(x, bins, w=None, **options):
        return tuple(torch.histogram(x, bins, weight=w, density=density, **options))

    for x in layouts((6, 40)):
        for bins, options in [(7, {}), (5, {"range": (-1.0, 0.5)}), (torch.tensor([-2.0, -1.0, 0.3, 3.0]), {})]:
            agree(lambda x, b, w, o=options: call(x, b, w, **o), x, bins, weight, backward=False)


@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(density, mps, no_fallback):
    x, weight = torch.randn(5, 30, 2), torch.rand(5, 30)

    def call(x, bins, w, **options):
        hist, edges = torch.histogramdd(x, bins, weight=w, density=density, **options)
        return hist, *edges

    agree(lambda x, w: call(x, [4, 6], w), x, weight, backward=False)
    agree(lambda x, w: call(x, [4, 6], None, range=[-1.0, 1.0, -2.0, 0.0]), x, weight, backward=False)
    edges = [torch.tensor([-1.0, 0.0, 0.5]), torch.tensor([-3.0, 3.0])]
    agree(lambda x, w, *e: call(x, list(e), w), x, weight, *edges, backward=False)


@pytest.mark.parametrize("scale", [1e-36, 1.0, 1e35])
def test_weights_of_both_signs(scale, mps, flushes):
    """Each bin's sum is what double gives, rounded, although most of it cancels."""
    x, edges = torch.rand(1000) * 3, torch.tensor([0.0, 1.0, 2.0, 3.0])
    weight = torch.randn(1000) * scale
    if flushes:
        weight[weight.abs() < torch.finfo(torch.float32).tiny] = 0
    got = torch.histogram(x.to(mps), edges.to(mps), weight=weight.to(mps)).hist
    wanted = torch.histogram(x.double(), edges.double(), weight=weight.double()).hist
    torch.testing.assert_close(got.cpu(), wanted.float(), rtol=1.2e-7, atol=0)
    density = torch.histogram(x.to(mps), edges.to(mps), weight=weight.to(mps), density=True).hist
    torch.testing.assert_close(density.cpu(), (wanted / wanted.sum()).float(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 0.0])
def test_special_weights(weight, mps):
    x, w = torch.tensor([0.5, 1.5, 1.6]), torch.tensor([1.0, weight, 2.0] if weight else [0.0] * 3)
    agree(lambda x, w, e: tuple(torch.histogram(x, e, weight=w)), x, w, torch.tensor([0.0, 1.0, 2.0]), backward=False)


def test_points_on_edges_and_outside(mps):
    x = torch.tensor([0.0, 1.0, 2.0, 3.0, -0.1, 3.1, float("nan"), float("inf"), 1.5])
    agree(lambda x, e: tuple(torch.histogram(x, e)), x, torch.tensor([0.0, 1.0, 2.0, 3.0]), backward=False)
    agree(lambda x: tuple(torch.histogram(x, 3, range=(0.0, 3.0))), x, backward=False)
    agree(lambda x: tuple(torch.histogram(x, 3)), torch.ones(5), backward=False)
    agree(lambda x: tuple(torch.histogram(x, 3)), torch.ones(0), backward=False)


def test_out(mps):
    x = torch.randn(30)
    expected = torch.histogram(x, 4)
    out = torch.empty(0, device=mps), torch.empty(0, device=mps)
    torch.histogram(x.to(mps), 4, out=out)
    for got, want in zip(out, expected):
        torch.testing.assert_close(got.cpu(), want)
    with pytest.raises(RuntimeError, match="have the same dtype, but got input float and hist c10::Half"):
        torch.histogram(x.to(mps), 4, out=(out[0].half(), out[1]))
    with pytest.raises(RuntimeError, match="range .* is not finite"):
        torch.histogram(torch.tensor([1.0, float("nan")], device=mps), 4)


@pytest.mark.parametrize("bins", [1, 7, 100, 5000, 30000])
def test_histc_and_bincount(bins, mps):
    x = torch.randn(20011)
    for options in ({}, {"min": -1.0, "max": 0.5}):
        wanted, got = torch.histc(x, bins, **options), torch.histc(x.to(mps), bins, **options).cpu()
        assert got.sum() == wanted.sum()
        assert (got - wanted).abs().sum() <= 2e-3 * x.numel()  # rounding moves elements that lie on a bin's edge
    for dtype in (torch.int64, torch.int32, torch.uint8):
        ints = torch.randint(0, min(bins, 255), (20011,)).to(dtype)
        got = torch.bincount(ints.to(mps)[1:], minlength=bins)
        torch.testing.assert_close(got.cpu(), torch.bincount(ints[1:], minlength=bins))
    weights = torch.rand(20010)
    got = torch.bincount(ints.to(mps)[1:], weights.to(mps))
    exact = torch.bincount(ints[1:], weights.double())
    # 20,000 additions to one bin, in any order
    torch.testing.assert_close(got.cpu().double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32])
def test_bincount_adds_up_in_floats(dtype, mps):
    """The CPU's results are float64 for all weights but floats; 16 bits would stop counting at 2048 or 256."""
    ints, weights = torch.zeros(5000, dtype=torch.int64), torch.ones(5000).to(dtype)
    got = torch.bincount(ints.to(mps), weights.to(mps))
    assert got.dtype == torch.float32 and got.item() == torch.bincount(ints, weights).item() == 5000


INTEGERS = torch.tensor([1, 2, 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8, torch.complex64], ids=str)
@pytest.mark.parametrize("bins, low, high", [(0, 0, 1), (4, 1, 0), (4, math.nan, 1), (4, 0, math.inf)])
def test_histc_refuses_a_range_as_the_cpu_does(dtype, bins, low, high, raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda device: torch.histc(INTEGERS.to(device, dtype), bins, low, high))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.bincount(x.float()),
        lambda x: torch.bincount(x[:0].float()),
        lambda x: torch.bincount(x.to(torch.complex64)),
        lambda x: torch.bincount(x, minlength=-1),
        lambda x: torch.bincount(x.view(1, 3)),
        lambda x: torch.bincount(-x),
        lambda x: torch.bincount(x, x[:2]),
        lambda x: torch.histc(x, 4, 0, 3),
    ],
)
def test_counts_of_what_the_cpu_refuses(call, raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda device: call(INTEGERS.to(device)))
