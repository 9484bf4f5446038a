"""Images so large that a thread takes the same place of four planes; on GPUs, as which test_gpu_kernels.py runs it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

FORMATS = (torch.contiguous_format, torch.channels_last)


def grid(images: torch.Tensor) -> torch.Tensor:
    steps = torch.linspace(-1.1, 1.1, 64)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1).to(images.device)
    return grid.expand(images.shape[0], -1, -1, -1)


CASES = {
    "max_pool2d": lambda t: F.max_pool2d(t, 3, 2, 1),
    "max_pool2d, disjoint": lambda t: F.max_pool2d(t, 2),
    "avg_pool2d": lambda t: F.avg_pool2d(t, 3, 2, 1),
    "avg_pool2d, cut": lambda t: F.avg_pool2d(t, 3, 2, ceil_mode=True, count_include_pad=False),
    "adaptive_avg_pool2d": lambda t: F.adaptive_avg_pool2d(t, (60, 41)),
    "nearest": lambda t: F.interpolate(t, scale_factor=1.5, mode="nearest"),
    "bilinear": lambda t: F.interpolate(t, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda t: F.interpolate(t, size=(70, 75), mode="bilinear", align_corners=True),
    "bicubic, antialias": lambda t: F.interpolate(t, size=(70, 50), mode="bicubic", antialias=True),
    "pad": lambda t: F.pad(t, (1, 2, 3, 4), "reflect"),
    "grid_sample": lambda t: F.grid_sample(t, grid(t), align_corners=False),
    "unfold": lambda t: F.unfold(t, 3, padding=1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(8, 6, 152, 148), (3, 16, 152, 148)])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_four_planes(name, shape, memory_format, mps, no_fallback):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).contiguous(memory_format=memory_format)
    expected_leaf, leaf = x.clone().requires_grad_(), x.to(mps).requires_grad_()
    expected, actual = CASES[name](expected_leaf), CASES[name](leaf)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)
    if name != "grid_sample":  # its gradient is that of one plane a thread
        gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
        expected.backward(gradient)
        actual.backward(gradient.to(mps))
        torch.testing.assert_close(leaf.grad.cpu(), expected_leaf.grad, rtol=1e-4, atol=1e-4)
