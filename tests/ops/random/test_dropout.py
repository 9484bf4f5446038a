"""Dropout keeps the order of dimensions in memory that the CPU keeps, and every element in its place."""

import itertools

import pytest
import torch

LAYOUTS = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "sliced channels last": lambda t: t.contiguous(memory_format=torch.channels_last)[..., ::2],
    "permuted": lambda t: t.permute(3, 1, 0, 2),
    "sliced and permuted": lambda t: t.permute(2, 0, 3, 1)[:, 1:, 1:],
    "expanded": lambda t: t[:, :1].expand(-1, 6, -1, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layouts(layout, dtype, mps, no_fallback):
    t = torch.randn(3, 6, 4, 8).to(dtype)
    x, expected = LAYOUTS[layout](t.to(mps)), LAYOUTS[layout](t)
    assert x.stride() == expected.stride()
    for p, train in itertools.product((1e-10, 0.5), (True, False)):
        out, mask = torch.native_dropout(x.requires_grad_(), p, train)
        like = torch.native_dropout(expected, p, train)
        assert (out.stride(), mask.stride()) == (like[0].stride(), like[1].stride())
        scale = 1 / (1 - p) if train else 1
        torch.testing.assert_close(out.cpu(), expected * mask.cpu() * scale)
        assert mask.all() or p == 0.5
        (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
        torch.testing.assert_close(grad.cpu(), (mask.cpu() * scale).to(dtype))
