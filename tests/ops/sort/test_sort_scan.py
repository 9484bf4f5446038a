"""Sorting, selection and scans against the CPU."""

import pytest
import torch
from compare import same

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
SHAPES = [(), (1,), (7,), (8,), (9,), (257,), (5, 33), (3, 4, 17), (2, 700), (2, 3000), (0,), (2, 0, 3)]


def values(shape, dtype):
    if dtype.is_floating_point:
        x = torch.randn(shape).mul(8).round().div(4).to(dtype)  # with ties
        if x.numel() > 4:
            x.view(-1)[1], x.view(-1)[3], x.view(-1)[4] = torch.inf, -torch.inf, torch.nan
        return x
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -(2**62)), min(info.max, 2**62), shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_stable_sort(dtype, descending):
    for shape in SHAPES:
        x = values(shape, dtype)
        for dim in range(max(1, x.dim())):
            wanted = torch.sort(x, dim=dim, descending=descending, stable=True)
            got = torch.sort(x.to("mps"), dim=dim, descending=descending, stable=True)
            same(got.values, wanted.values)
            same(got.indices, wanted.indices)


def test_sort_of_long_and_strided_rows():
    x = torch.randn(3, 20000)
    same(torch.sort(x.to("mps"))[1], torch.sort(x, stable=True)[1])
    y = torch.randn(50, 60)
    same(torch.sort(y.to("mps").t()[3:40], 0)[0], torch.sort(y.t()[3:40], 0)[0])
    out = (torch.empty(60, 50, device="mps").t(), torch.empty(60, 50, dtype=torch.int64, device="mps").t())
    torch.sort(y.to("mps"), 1, out=out)
    same(out[0], torch.sort(y, 1)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_topk_and_kthvalue(dtype):
    for shape, dim, k in (((100,), 0, 5), ((4, 50), 1, 50), ((50, 4), 0, 3), ((3, 9, 5), 1, 1)):
        x = torch.randperm(int(torch.tensor(shape).prod())).view(shape).to(dtype)
        for largest in (True, False):
            wanted, got = torch.topk(x, k, dim, largest), torch.topk(x.to("mps"), k, dim, largest)
            same(got.values, wanted.values)
            if dtype != torch.float16:  # equal halves may come in any order
                same(got.indices, wanted.indices)
        same(torch.kthvalue(x.to("mps"), k, dim).values, torch.kthvalue(x, k, dim).values)
    assert torch.topk(torch.ones(3, device="mps"), 0)[0].shape == (0,)
    outs = torch.full((), 9.0, device="mps"), torch.full((), 9, device="mps")
    assert [t.item() for t in torch.topk(torch.tensor(3.0, device="mps"), 0, out=outs)] == [3.0, 0]
    with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
        torch.kthvalue(torch.ones(3, 0, device="mps"), 1)


def test_topk_gradient():
    x = torch.randn(6, 20)
    a, b = x.clone().requires_grad_(), x.to("mps").requires_grad_()
    a.topk(4).values.sin().sum().backward()
    b.topk(4).values.sin().sum().backward()
    torch.testing.assert_close(b.grad.cpu(), a.grad)


def test_median():
    for x in (torch.randn(9), torch.randn(4, 10), torch.tensor([1.0, torch.nan, 3.0, 2.0, torch.nan])):
        for f in (torch.median, torch.nanmedian):
            same(f(x.to("mps")), f(x))
            same(f(x.to("mps"), 0).values, f(x, 0).values)
    x = torch.randint(0, 100, (5, 6))
    same(x.to("mps").median(1, keepdim=True).values, x.median(1, keepdim=True).values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cumulative(dtype):
    for shape in SHAPES + [(70000,), (3, 5000)]:
        x = values(shape, dtype) if len(shape) != 1 or shape[0] < 1000 else torch.randint(0, 2, shape).to(dtype)
        if dtype.is_floating_point:
            x = torch.nan_to_num(x, 0.0, 1.0, -1.0)
        for dim in range(max(1, x.dim())):
            wanted, got = x.cumsum(dim), x.to("mps").cumsum(dim)
            assert got.dtype == wanted.dtype
            if dtype.is_floating_point:
                # The CPU rounds every partial sum of half types; ours adds in float.
                wanted = x.double().cumsum(dim).to(dtype)
                tolerance = 1e-4 if dtype == torch.float32 else 2e-2
                torch.testing.assert_close(got.cpu(), wanted, rtol=tolerance, atol=tolerance)
            else:
                same(got, wanted)
            for f in (torch.cummax, torch.cummin):
                a, b = f(x, dim), f(x.to("mps"), dim)
                same(b.values, a.values)
                same(b.indices, a.indices)


def test_cumprod_logcumsumexp_and_gradients():
    x = torch.rand(4, 300) + 0.5
    for f in (torch.cumprod, torch.logcumsumexp, torch.cumsum):
        a, b = x.clone().requires_grad_(), x.to("mps").requires_grad_()
        f(a, 1).mul(1e-3).sum().backward()
        f(b, 1).mul(1e-3).sum().backward()
        torch.testing.assert_close(f(b, 1).detach().cpu(), f(a, 1).detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-4)
    x = torch.tensor([-torch.inf, -torch.inf, 1.0, torch.inf, 2.0])
    same(torch.logcumsumexp(x.to("mps"), 0), torch.logcumsumexp(x, 0))
    nan = torch.tensor([1.0, torch.nan, 3.0])
    same(torch.cummax(nan.to("mps"), 0).values, torch.cummax(nan, 0).values)


def test_in_place_and_dtype():
    x = torch.randint(-9, 9, (6, 40))
    y = x.to("mps")
    y.cumsum_(1)
    same(y, x.cumsum(1))
    same(x.to("mps").cumsum(0, dtype=torch.int8), x.cumsum(0, dtype=torch.int8))
    same(x.to("mps").cumsum(0, dtype=torch.float32), x.cumsum(0, dtype=torch.float32))


@pytest.mark.parametrize("rows, length", [(9000, 100), (3, 2000)])
def test_scans_of_rows_in_one_tile(rows, length):
    x = torch.randn(rows, length)
    for name in ("cumsum", "logcumsumexp"):
        wanted = getattr(x.double(), name)(1).float()
        torch.testing.assert_close(getattr(x.to("mps"), name)(1).cpu(), wanted, rtol=1e-5, atol=1e-5 * length**0.5)


@pytest.mark.parametrize(
    "shape, dim", [((100003,), 0), ((3, 20004), 1), ((600, 37), 1), ((2, 3000, 20), 1), ((6, 500, 3), 1)]
)
def test_scans_of_many_chunks(shape, dim):
    ints = torch.randint(-(2**40), 2**40, shape)
    same(ints.to("mps").cumsum(dim), ints.cumsum(dim))
    same(ints.to("mps").cumprod(dim), ints.cumprod(dim))
    ties = torch.randint(0, 1000, shape).float()
    for x in (ties, torch.full(shape, -torch.inf), torch.where(ties == 7, torch.nan, ties), ties.long()):
        for f in (torch.cummax, torch.cummin):
            wanted, got = f(x, dim), f(x.to("mps"), dim)
            same(got.values, wanted.values)
            same(got.indices, wanted.indices)
    x = torch.randn(shape)
    wanted = x.double().cumsum(dim).float()
    torch.testing.assert_close(x.to("mps").cumsum(dim).cpu(), wanted, rtol=1e-5, atol=1e-3)
    wanted = x.double().logcumsumexp(dim).float()
    torch.testing.assert_close(x.to("mps").logcumsumexp(dim).cpu(), wanted, rtol=1e-5, atol=1e-5)
    z = torch.complex(x, ties)
    wanted = z.to(torch.complex128).cumsum(dim).to(torch.complex64)
    torch.testing.assert_close(z.to("mps").cumsum(dim).cpu(), wanted, rtol=1e-5, atol=1e-2)
    y = x.to("mps")
    same(y.cumsum(dim), y.clone().cumsum_(dim).cpu())
    half = x.half()
    torch.testing.assert_close(half.to("mps").cumsum(dim).cpu(), half.double().cumsum(dim).half(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("length", [200, 900, 1500, 5000])
def test_sort_keeps_ties_and_bits(length):
    few = torch.randint(0, 3, (3, length))
    signs = torch.where(torch.rand(3, length) < 0.5, 0.0, -0.0)
    mixed = torch.randn(3, length)
    mixed[1, ::7], mixed[2, ::5], mixed[0, ::9], mixed[0, 1::9] = torch.nan, -torch.inf, 0.0, -0.0
    for x in (few, few.to(torch.uint8), few.int() - 1, signs, mixed, mixed.half(), torch.full((3, length), torch.nan)):
        for descending in (False, True):
            wanted = torch.sort(x, stable=True, descending=descending)
            got = torch.sort(x.to("mps"), stable=True, descending=descending)
            same(got.indices, wanted.indices)
            same(got.values, wanted.values)
            if x.is_floating_point():
                same(got.values.signbit(), wanted.values.signbit())
    wide = torch.randint(-(2**63), 2**63 - 1, (2, length))
    same(torch.sort(wide.to("mps")).indices, torch.sort(wide, stable=True).indices)


def test_sort_in_place():
    for x in (torch.randint(0, 255, (5000,), dtype=torch.uint8), torch.randn(5000)):
        y, place = x.to("mps"), torch.empty(0, dtype=torch.int64, device="mps")
        torch.sort(y, out=(y, place))
        same(y, x.sort().values)


@pytest.mark.parametrize("length", [5000, 20011])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
def test_selection_from_long_rows(length, dtype):
    x = torch.randn(3, length).mul(50)
    x[1] = torch.randint(0, 3, (length,))  # ties
    if dtype.is_floating_point:
        x[2, 7::11], x[2, 5] = torch.nan, -torch.inf
    x = x.to(dtype)
    ours = x.to("mps")
    for descending in (False, True):
        wanted, order = torch.sort(x, stable=True, descending=descending)
        for k in (1, 10, 700):
            got = torch.topk(ours, k, largest=descending)
            same(got.values, wanted[:, :k])
            same(got.indices, order[:, :k])
    for k in (1, 400, length):
        got = torch.kthvalue(ours, k)
        same(got.values, torch.kthvalue(x, k).values)
        same(x.gather(1, got.indices.cpu().unsqueeze(1)).squeeze(1), got.values.cpu())
    for f in (torch.median, torch.nanmedian):
        same(f(ours, 1).values, f(x, 1).values)
        same(f(ours), f(x))


def whole_numbers():
    """As many elements as are counted where their range is small, which 8,192 numbers are here and 8,193 are not."""
    n = 1 << 16
    generator = torch.Generator().manual_seed(3)

    def between(low, high, dtype):
        x = torch.randint(low, high, (n,), generator=generator, dtype=torch.int64)
        x[7], x[n - 1] = low, high - 1
        return x.to(dtype)

    return {
        "few": between(-5, 6, torch.int64),
        "the last range that is counted": between(-1000, -1000 + 8192, torch.int32),
        "the first that is sorted": between(-1000, -1000 + 8193, torch.int32),
        "far from 0": between(2**62, 2**62 + 99, torch.int64),
        "down to the lowest": between(-(2**63), -(2**63) + 99, torch.int64),
        "both ends": torch.tensor([2**63 - 1, -(2**63), 0, 5]).repeat(n // 4),
        "one value": torch.full((n,), -(2**31), dtype=torch.int32),
        "int8": between(-128, 128, torch.int8),
        "int16": between(-(2**15), 2**15, torch.int16),
        "uint8": between(0, 256, torch.uint8),
        "bool": between(0, 2, torch.bool),
        "a transpose": between(0, 3000, torch.int64).view(256, 256).t(),
        "one element too few": between(0, 9, torch.int64)[1:],
    }


def same_unique(x):
    ours = x.to("mps")
    same(torch.unique(ours), torch.unique(x))
    for got, wanted in zip(
        torch.unique(ours, return_inverse=True, return_counts=True),
        torch.unique(x, return_inverse=True, return_counts=True),
        strict=True,
    ):
        same(got, wanted)


@pytest.mark.parametrize("name", whole_numbers())
def test_distinct_whole_numbers_are_counted(name, mps):
    same_unique(whole_numbers()[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_distinct_elements(dtype):
    for length in (1, 2, 3000, 20011):
        x = torch.randn(length).mul(20).to(dtype)
        same_unique(x)
        same(torch.unique_consecutive(x.to("mps")), torch.unique_consecutive(x))
        rows = x.view(-1, 1).expand(-1, 3).contiguous()
        same(torch.unique_consecutive(rows.to("mps"), dim=0), torch.unique_consecutive(rows, dim=0))
