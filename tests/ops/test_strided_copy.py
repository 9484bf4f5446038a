"""Copies between layouts, as lines of words where both have them."""

import random

import pytest
import torch

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex64)


def draw(rng, dtype):
    """A view of some layout, on the CPU and on the device, and whether its lines may be words."""
    shape = [rng.choice((1, 2, 3, 5, 8, 16, 33)) for _ in range(rng.randint(2, 5))]
    x = torch.randint(0, 100, shape).to(dtype)
    memory = torch.zeros(x.numel() + 16, dtype=dtype, device="mps")
    offset = rng.choice((0, 0, 4, 16))
    y = memory[offset : offset + x.numel()].view(shape)
    y.copy_(x)
    order = list(range(len(shape)))
    rng.shuffle(order)
    if rng.random() < 0.6:  # the last dimension stays the last
        order = [d for d in order if d != len(shape) - 1] + [len(shape) - 1]
    begin, step = rng.choice((0, 0, 1)), rng.choice((1, 1, 2))
    views = [v.permute(order)[begin::step] for v in (x, y)]
    if rng.random() < 0.2:
        views = [v.unsqueeze(1).expand(-1, 3, *v.shape[1:]) for v in views]
    return views


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_of_any_layout(dtype):
    rng = random.Random(0)
    for _ in range(60):
        expected, view = draw(rng, dtype)
        assert torch.equal(view.clone(memory_format=torch.contiguous_format).cpu(), expected)
        around = torch.zeros(3, *expected.shape, dtype=dtype, device="mps")
        around[1].copy_(view)
        assert torch.equal(around[1].cpu(), expected)
        assert not around[::2].any()


def test_heads_of_attention():
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(3, 20, 5, 64).to(dtype)
        assert torch.equal(x.to("mps").permute(0, 2, 1, 3).contiguous().cpu(), x.permute(0, 2, 1, 3).contiguous())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transposed(dtype):
    """Tiles of whole words, of halves of them where sizes are odd, and one or two further dimensions."""
    for shape in ((64, 64), (130, 70), (33, 200), (3, 66, 38), (2, 5, 34, 64), (5, 33, 35)):
        x = torch.randint(0, 100, shape).to(dtype)
        for order in ((-1, -2), (0, -1)):
            expected = x.transpose(*order).contiguous()
            assert torch.equal(x.to("mps").transpose(*order).contiguous().cpu(), expected)
            offset = torch.cat((x.flatten()[:1], x.flatten())).to("mps")[1:].view(shape)
            assert torch.equal(offset.transpose(*order).contiguous().cpu(), expected)
