"""Operands of different strides, which GPUs read in quads of four elements (again in test_gpu_kernels.py)."""

import pytest
import torch
from compare import same

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
# Shapes that broadcast against each other: rows of quads, rows that quads go over, neither, long and 0-d ones.
SHAPES = [
    ((40, 128), (40, 1)),
    ((40, 128), (128,)),
    ((3, 5, 7, 96), (96,)),
    ((3, 8, 6, 6), (8, 1, 1)),
    ((4, 6, 7, 7), (6, 1, 1)),
    ((8, 3, 7, 7), (3, 7, 7)),
    ((4, 1, 5), (1, 6, 1)),
    ((5, 3, 3), (3, 1)),
    ((2, 4), (1, 1)),
    ((1030, 36), (1030, 1)),
    ((6, 4, 5, 8), (6, 1, 5, 1)),
    ((0, 8), (1,)),
    ((16,), ()),
]


def values(shape, dtype):
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 100, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcast_operands(dtype, shapes):
    a, b = values(shapes[0], dtype), values(shapes[1], dtype)
    x, y = a.to("mps"), b.to("mps")
    same(x * y, a * b)
    same(y.mul(x), b.mul(a))
    same(x == y, a == b)
    same(torch.where(x > y, x, y), torch.where(a > b, a, b))
    same(torch.maximum(x, y), torch.maximum(a, b))
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    same(x * y.to(other), a * b.to(other))
    if a.shape == (a * b).shape:
        same(x.clone().add_(y), a.clone().add_(b))
        into = torch.empty(a.shape, dtype=dtype, device="mps")
        same(torch.mul(x, y, out=into), a * b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_operands_at_any_address_and_step(dtype):
    a = values((24, 64), dtype)
    x = a.to("mps")
    views = {
        "begins in a word": lambda t: t[:, 1:33],
        "rows begin in a word": lambda t: t.flatten()[: 24 * 33].view(24, 33)[:, :32],
        "every second": lambda t: t[:, ::2],
        "every fourth": lambda t: t[:, ::4].repeat(1, 2),
        "far apart": lambda t: t[:, :24].t().repeat(1, 2)[:, :32],
        "rows in another order": lambda t: t[:, :32].flip(0),
        "every second row": lambda t: t[::2, :32].repeat(2, 1),
        "expanded": lambda t: t[:, :1].expand(24, 32),
        "one row": lambda t: t[3, 5:37].expand(24, 32),
        "columns first": lambda t: t[:, :32].t().contiguous().t(),
    }
    for first in views.values():
        for second in views.values():
            same(first(x) + second(x), first(a) + second(a))
    for into in ("begins in a word", "every second", "columns first"):
        ours, wanted = x.clone(), a.clone()
        views[into](ours).add_(views["one row"](x))
        views[into](wanted).add_(views["one row"](a))
        same(ours, wanted)


def test_two_outputs_scalars_and_long_functors():
    a, b = torch.randn(12, 20, 64), torch.rand(20, 1).add(0.1)
    x, y = a.to("mps"), b.to("mps")
    for got, wanted in zip(torch.frexp(x.transpose(0, 1)), torch.frexp(a.transpose(0, 1))):
        same(got, wanted)
    torch.testing.assert_close(torch.addcmul(x, x, y, value=3).cpu(), torch.addcmul(a, a, b, value=3))
    same(x.clamp(-y, y), a.clamp(-b, b))
    torch.testing.assert_close(torch.pow(y, x).cpu(), torch.pow(b, a))
    same(x[..., 0] * 2 - y.t(), a[..., 0] * 2 - b.t())
    c = torch.randn(12, 20, 64, dtype=torch.complex64)
    torch.testing.assert_close((c.to("mps") * y).cpu(), c * b)


def test_more_dimensions_than_two_and_many_elements():
    a, b, c = torch.randn(6, 5, 7, 3, 12), torch.randn(5, 1, 3, 1), torch.randn(6, 1, 7, 1, 12)
    x, y, z = (t.to("mps") for t in (a, b, c))
    same(x * y, a * b)
    same(x * y + z, a * b + c)
    same(x.permute(3, 1, 0, 2, 4) * z.permute(3, 1, 0, 2, 4), a.permute(3, 1, 0, 2, 4) * c.permute(3, 1, 0, 2, 4))
    long, column = torch.randn(70000, 36), torch.randn(70000, 1)
    same(long.to("mps") * column.to("mps"), long * column)
    assert (x[:, :0] * y[:0, :, :, :]).numel() == 0
