"""fold and unfold: windows, layouts, types."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, layouts

WINDOWS = [
    {"kernel_size": 1},
    {"kernel_size": (2, 3), "stride": (1, 2)},
    {"kernel_size": 3, "padding": (1, 2), "dilation": (2, 1)},
    {"kernel_size": (3, 2), "padding": 2, "stride": 3},
]


def columns(windows, height, width):
    """The shape that unfold gives for one channel."""
    return F.unfold(torch.zeros(1, 1, height, width), **windows).shape


@pytest.mark.parametrize("windows", WINDOWS)
def test_windows(windows, mps, no_fallback):
    agree(lambda x: F.unfold(x, **windows), torch.randn(2, 3, 8, 9))
    agree(lambda x: F.unfold(x, **windows), torch.randn(3, 8, 9))
    _, rows, count = columns(windows, 8, 9)
    agree(lambda x: F.fold(x, (8, 9), **windows), torch.randn(2, 3 * rows, count))
    agree(lambda x: F.fold(x, (8, 9), **windows), torch.randn(3 * rows, count))


def test_layouts(mps):
    for x in layouts((2, 3, 5, 6)):
        agree(lambda x: F.unfold(x, 2, padding=1), x)
    for x in layouts((2, 12, 20)):
        agree(lambda x: F.fold(x, (5, 6), 2), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.bool])
def test_types(dtype, mps):
    floating = dtype != torch.bool
    values = torch.randn if floating else lambda *shape, dtype: torch.rand(*shape) < 0.3
    agree(lambda x: F.unfold(x, 2, padding=1), values(2, 3, 5, 6, dtype=dtype), backward=floating)
    # The device rounds once, the CPU after every addition.
    agree(lambda x: F.fold(x, (5, 6), 2), values(2, 12, 20, dtype=dtype), backward=floating)


def test_empty_and_out(mps):
    agree(lambda x: F.unfold(x, 2), torch.randn(0, 3, 4, 4))
    agree(lambda x: F.fold(x, (5, 6), 2), torch.randn(0, 12, 20))
    for device in ("cpu", mps):
        out = torch.empty(0, device=device)
        torch.ops.aten.im2col.out(torch.ones(1, 2, 3, 3, device=device), [2, 2], [1, 1], [0, 0], [1, 1], out=out)
        assert out.shape == (1, 8, 4) and out.cpu().eq(1).all()


def test_integers_are_refused(mps):
    with pytest.raises(NotImplementedError, match="\"im2col_out_cpu\" not implemented for 'Int'"):
        F.unfold(torch.ones(1, 1, 4, 4, dtype=torch.int32, device=mps), 2)
    with pytest.raises(NotImplementedError, match="\"col2im_out_cpu\" not implemented for 'Long'"):
        F.fold(torch.ones(1, 4, 9, dtype=torch.int64, device=mps), (4, 4), 2)
