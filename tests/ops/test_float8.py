"""Tensors of float8: conversions bit by bit as on the CPU, what moves elements, and products with scales."""

from __future__ import annotations

import pytest
import torch

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
OTHERS = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def every(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def same(got, want):
    """Equal, or NaN both, whatever its payload."""
    assert got.dtype == want.dtype and got.shape == want.shape
    torch.testing.assert_close(got.cpu().to(torch.float32), want.to(torch.float32), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FORMATS)
def test_to_other_dtypes(dtype, mps, no_fallback):
    values = every(dtype)
    finite = values[values.float().isfinite() & (values.float().abs() < 1e4)]
    for other in OTHERS:
        source = values if other.is_floating_point else finite
        got = source.to(mps).to(other)
        torch.testing.assert_close(got.cpu(), source.to(other), rtol=0, atol=0, equal_nan=True)
    for other in FORMATS:
        same(values.to(mps).to(other), values.to(other))
    assert torch.equal(values.to(mps).view(torch.uint8).cpu(), values.view(torch.uint8))


@pytest.mark.parametrize("dtype", FORMATS)
def test_from_other_dtypes(dtype, mps, no_fallback):
    """Every float8, the floats half-way between two and their neighbours, and what is too large or small."""
    exact = every(dtype).float()
    exact = exact[exact.isfinite()].sort().values
    middle = (exact[1:].double() + exact[:-1].double()).div(2).float()
    x = torch.cat(
        [exact, middle, torch.nextafter(middle, torch.tensor(9e9)), torch.nextafter(middle, torch.tensor(-9e9))]
    )
    x = torch.cat(
        [x, torch.tensor([0.0, -0.0, 464.0, 465.0, 480.0, 61440.0, 65536.0, 1e30, float("inf"), float("nan")])]
    )
    x = torch.cat([x, -x, torch.randn(3000) * torch.logspace(-38, 38, 3000)])
    if dtype != torch.float8_e8m0fnu:  # elsewhere below the smallest float8, and the device may flush them
        x = torch.cat([x, torch.tensor([1e-40, -1e-40])])
    same(x.to(mps).to(dtype), x.to(dtype))
    assert torch.equal(
        x.to(mps).to(dtype).view(torch.uint8).cpu()[x.isfinite()], x.to(dtype).view(torch.uint8)[x.isfinite()]
    )
    for other in (torch.float16, torch.bfloat16):
        same(x.to(other).to(mps).to(dtype), x.to(other).to(dtype))
    for other in (torch.int64, torch.int32, torch.uint8, torch.bool):
        whole = torch.arange(-300, 300).to(other)
        same(whole.to(mps).to(dtype), whole.to(dtype))
    numbers = torch.randn(9, dtype=torch.complex64)
    same(numbers.real.to(mps).to(dtype), numbers.real.to(dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_moves_elements(dtype, mps, no_fallback):
    x = torch.rand(6, 8).add(0.1).to(dtype)
    for call in (
        lambda x: x.t().contiguous(),
        lambda x: x[1:, ::2].clone(),
        lambda x: x.expand(3, 6, 8).reshape(-1),
        lambda x: torch.cat([x, x[:2]]),
        lambda x: torch.stack([x, x], 1),
        lambda x: x[torch.tensor([4, 0, 0], device=x.device)],
        lambda x: x.index_select(1, torch.tensor([7, 1], device=x.device)),
        lambda x: x.new_zeros(3, 2),
        lambda x: torch.full((3,), 2.0, dtype=dtype, device=x.device),
        lambda x: x.clone().zero_() if dtype != torch.float8_e8m0fnu else x.clone().fill_(4.0),
        lambda x: x.flatten().unfold(0, 4, 3).contiguous(),
        lambda x: x.float().t().to(dtype),
        lambda x: x.clone().copy_(torch.ones(8, device=x.device)),
    ):
        same(call(x.to(mps)), call(x))
    assert x[0, 0].to(mps).item() == x[0, 0].item()
    if dtype != torch.float8_e8m0fnu:  # which PyTorch does not print
        assert str(x.to(mps)).replace("device='mps:0', ", "") == str(x)
    same(torch.empty(0, 3, dtype=dtype, device=mps).to(torch.float32).to(dtype), torch.empty(0, 3, dtype=dtype))


def test_what_computes_raises(mps):
    x = torch.ones(3).to(torch.float8_e4m3fn).to(mps)
    for call in (lambda: x + x, lambda: x.sin(), lambda: x.sum(), lambda: x @ x):
        with pytest.raises(NotImplementedError, match="not implemented for 'Float8_e4m3fn'"):
            call()


PAIRS = {"eq": torch.eq, "ne": torch.ne, "mul": torch.mul, "where": lambda a, b: torch.where(a.isnan(), b, a)}
SINGLE = {"abs": torch.abs, "isnan": torch.isnan}


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_the_cpu_computes(dtype, mps, no_fallback):
    """Every number with every other one; broadcast, in place, transposed, and with a number that is rounded first."""
    a, b = every(dtype), every(dtype)[torch.randperm(256)]
    scales = dtype == torch.float8_e8m0fnu  # whose smallest number is subnormal in float32: no arithmetic
    for call in (call for name, call in PAIRS.items() if name != "mul" or not scales):
        same(call(a.to(mps)[:, None], b.to(mps)), call(a[:, None], b))
    for name, call in SINGLE.items():
        if not scales or name == "isnan":  # the CPU has no abs of numbers without a sign
            same(call(a.to(mps).view(16, 16).t()), call(a.view(16, 16).t()))
    for number in (0.3, 1.0, 2):
        same(a.to(mps) == number, a == number)
        same(torch.where(a.to(mps).isnan(), number, a.to(mps)), torch.where(a.isnan(), number, a))
    got, want = a.to(mps), a.clone()
    if scales:
        with pytest.raises(NotImplementedError, match="mul_cpu"):
            got.mul_(b.to(mps))
    else:
        same(got.mul_(b.to(mps)), want.mul_(b))
    numbers = a[~a.isnan()].to(mps)
    assert torch.equal(numbers, numbers.clone()) and not torch.equal(
        numbers, numbers.view(torch.uint8).flip(0).view(dtype)
    )
    assert (a.to(mps)[:0] == a.to(mps)[:0]).shape == (0,)
    if dtype == torch.float8_e5m2:  # the one with infinities
        assert torch.equal(a.to(mps).isfinite().cpu(), a.float().isfinite())
    with pytest.raises(NotImplementedError, match="lt_cpu"):
        torch.lt(a.to(mps), b.to(mps))
