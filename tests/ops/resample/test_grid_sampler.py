"""grid_sample in two and three dimensions: modes, paddings, layouts, types, positions that are no numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, layouts

PADDINGS = ("zeros", "border", "reflection")
CASES = [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")]
if torch.__version__ >= "2.15":  # the CPU refuses it before
    CASES.append((3, "bicubic"))


def positions(*sizes):
    """A grid that goes beyond the image; nearest's ties do not occur."""
    return torch.rand(*sizes) * 3.1 - 1.55


@pytest.mark.parametrize(("spatial", "mode"), CASES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("align", [False, True])
def test_modes(spatial, mode, padding, align, mps, no_fallback):
    image = torch.randn(2, 3, *(3, 5, 4)[:spatial])
    grid = positions(2, *(2, 6, 3)[:spatial], spatial)
    agree(lambda x, g: F.grid_sample(x, g, mode, padding, align), image, grid, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("spatial", "mode"), CASES)
def test_low_precision(dtype, spatial, mode, mps):
    """Against the CPU's float32, whose positions are not rounded on the way."""
    image = torch.randn(1, 2, *(4,) * spatial).to(dtype)
    grid = (positions(1, *(5,) * spatial, spatial) * 0.6).to(dtype)
    expected = F.grid_sample(image.float(), grid.float(), mode, align_corners=True)
    actual = F.grid_sample(image.to(mps), grid.to(mps), mode, align_corners=True)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=1e-2, atol=1e-2)


def test_layouts(mps):
    grids = [positions(2, 4, 5, 2), positions(2, 4, 7, 2)[:, :, 1:6], positions(2, 2, 5, 4).permute(0, 3, 2, 1)]
    for image, grid in itertools.product(layouts((2, 3, 5, 4)), grids):
        agree(lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid)
    channels_last = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    agree(lambda x, g: F.grid_sample(x, g, align_corners=False), channels_last, grids[0])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("spatial", "mode"), CASES)
def test_positions_that_are_no_numbers(spatial, mode, padding, mps):
    values = [float("nan"), float("inf"), float("-inf"), 0.25]
    grid = torch.tensor(list(itertools.product(values, repeat=spatial))).view(1, -1, *(1,) * (spatial - 1), spatial)
    image = torch.randn(1, 1, *(4, 3, 5)[:spatial])
    agree(lambda x, g: F.grid_sample(x, g, mode, padding, False), image, grid, backward=False)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 1), (2, 0, 3, 1), (2, 2, 0, 1)])
def test_empty(sizes, mps):
    batch, channels, height, width = sizes
    image, grid = torch.randn(batch, channels, 3, 3), positions(batch, height, width, 2)
    agree(lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid)


def test_large_and_deterministic(mps):
    """Many samples of one pixel; with deterministic algorithms the same bits every time."""
    image, grid = torch.randn(2, 3, 2, 2), positions(2, 40, 50, 2)
    agree(lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid, tolerance=1e-3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        agree(lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid, tolerance=1e-3)
        found = []
        for _ in range(2):
            x = image.to(mps).requires_grad_()
            F.grid_sample(x, grid.to(mps), align_corners=False).sum().backward()
            found.append(x.grad.cpu())
        assert torch.equal(*found)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_gradient_must_have_the_sizes_of_the_output(mps):
    image, grid = torch.ones(1, 1, 3, 3, device=mps), torch.zeros(1, 1, 1, 2, device=mps)
    with pytest.raises(ValueError, match="expected grad_output to have sizes"):
        torch.ops.aten.grid_sampler_2d_backward(image, image, grid, 0, 0, False, [True, True])


def test_types_must_be_equal(mps):
    image, grid = torch.ones(1, 1, 3, 3, device=mps), torch.zeros(1, 1, 1, 2, device=mps)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        F.grid_sample(image, grid.half(), align_corners=False)
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        F.grid_sample(image.int(), grid.int(), align_corners=False)
