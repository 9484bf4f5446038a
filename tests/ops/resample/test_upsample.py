"""Resampling and its gradients against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compare import SUMMED, close


def check(x, **options):
    """The result and the gradient are those of the CPU in float32, and so is the memory format."""
    outputs = []
    for leaf in (x.float(), x.to("mps")):
        leaf = leaf.detach()
        if x.is_floating_point():
            leaf.requires_grad_()
        y = F.interpolate(leaf, **options)
        results = [y.detach()]
        if x.is_floating_point():
            if not outputs:
                grad = torch.randn(y.shape).to(x.dtype)
            results += torch.autograd.grad(y, leaf, grad.to(y.device, y.dtype))
        outputs.append(results)
    for expected, actual in zip(*outputs, strict=True):
        assert actual.stride() == expected.stride()
        close(actual, expected, SUMMED, x.dtype, scaled=True)


SIZES = {1: [(7,), (13,), (3,), (1,)], 2: [(7, 13), (3, 4), (12, 10), (1, 1), (6, 5)], 3: [(7, 3, 9), (2, 8, 4)]}
SHAPE = {1: (2, 3, 6), 2: (2, 3, 6, 5), 3: (2, 3, 4, 6, 5)}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_sizes(dim, mps):
    for size in SIZES[dim]:
        x = torch.randn(SHAPE[dim])
        for mode in ("nearest", "nearest-exact"):
            check(x, size=size, mode=mode)
        for align in (False, True):
            check(x, size=size, mode=LINEAR[dim], align_corners=align)
            if dim == 2:
                check(x, size=size, mode="bicubic", align_corners=align)


@pytest.mark.parametrize("factor", [2, 0.5, 1.7, 3, (1.3, 2.6)], ids=str)
def test_scale_factors(factor, mps):
    x = torch.randn(2, 3, 9, 11)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        check(x, scale_factor=factor, mode=mode)
        check(x, scale_factor=factor, mode=mode, recompute_scale_factor=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype, mps):
    for mode in ("nearest", "bilinear"):
        check(torch.randn(2, 3, 6, 5).to(dtype), size=(9, 8), mode=mode)


def test_bytes_views_and_channels_last(mps):
    check(torch.randint(0, 256, (2, 3, 6, 5), dtype=torch.uint8), size=(9, 8), mode="nearest")
    base = torch.randn(5, 8, 12, 13)
    for mode in ("nearest", "bilinear"):
        check(base.contiguous(memory_format=torch.channels_last), scale_factor=2, mode=mode)
        check(base[1:4, 2:7:2, ::2, 3:12], size=(11, 4), mode=mode)


def test_wrong_arguments_raise_what_the_cpu_raises(mps):
    for case in (
        lambda t: torch._C._nn.upsample_nearest2d(t(2, 3, 4), (2, 2)),
        lambda t: torch._C._nn.upsample_bilinear2d(t(1, 1, 4, 4), (0, 2), False),
        lambda t: torch._C._nn.upsample_nearest2d(t(1, 0, 4, 4), (2, 2)),
    ):
        with pytest.raises(Exception) as expected:
            case(lambda *shape: torch.ones(shape))
        with pytest.raises(type(expected.value)) as actual:
            case(lambda *shape: torch.ones(shape, device="mps"))
        assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]
