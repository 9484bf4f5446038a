"""torch.flip beside the CPU: rows that lie in fours and others, views, every size of an element."""

from __future__ import annotations

import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.int16, torch.complex64]
SHAPES = [(64,), (5,), (7, 64), (7, 63), (3, 8, 64), (4, 4, 4, 8), (2, 3, 5, 4), (1, 16), (0, 4), ()]
VIEWS = {
    "dense": lambda t: t,
    "beginning": lambda t: t[tuple(slice(0, (n - 5) // 2) for n in t.shape)],
    "offset": lambda t: t[tuple(slice(3, 3 + (n - 5) // 2) for n in t.shape)],
    "steps": lambda t: t[tuple(slice(0, n - 5, 2) for n in t.shape)],
    "last": lambda t: t.transpose(0, -1) if t.dim() else t,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flip(dtype, view, mps):
    for shape in SHAPES:
        base = (torch.randn([2 * n + 5 for n in shape]) * 50).to(dtype)
        x, y = VIEWS[view](base), VIEWS[view](base.to(mps))
        for dims in ([0], [-1], list(range(x.dim()))) if x.dim() else ([],):
            flipped = y.flip(dims)
            assert torch.equal(flipped.cpu(), x.flip(dims)) and flipped.stride() == x.flip(dims).stride()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_channels_last(dtype, mps):
    x = (torch.randn(2, 8, 3, 5) * 50).to(dtype).to(memory_format=torch.channels_last)
    for dims in ([1], [3], [1, 2], [0, 1, 2, 3]):
        assert torch.equal(x.to(mps).flip(dims).cpu(), x.flip(dims))
