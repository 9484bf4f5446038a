"""pixel_shuffle against the CPU."""

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.complex64])
def test_pixel_shuffle(dtype):
    shapes = [((2, 8, 5, 7), 2), ((18, 3, 4), 3), ((2, 3, 4, 1, 6), 1), ((1, 16, 9, 9), 4), ((0, 4, 2, 2), 2)]
    for shape, factor in shapes:
        x = torch.randn(shape).mul(50).to(dtype)
        assert torch.equal(F.pixel_shuffle(x.to("mps"), factor).cpu(), F.pixel_shuffle(x, factor))
        turned = x.to("mps").transpose(-1, -2)
        assert torch.equal(F.pixel_shuffle(turned, factor).cpu(), F.pixel_shuffle(x.transpose(-1, -2), factor))


def test_gradient_and_errors():
    x = torch.randn(3, 4, 6, 5)
    a, b = x.clone().requires_grad_(), x.to("mps").requires_grad_()
    F.pixel_shuffle(a, 2).sin().sum().backward()
    F.pixel_shuffle(b, 2).sin().sum().backward()
    torch.testing.assert_close(b.grad.cpu(), a.grad)
    with pytest.raises(RuntimeError, match="divisible by the square of upscale_factor"):
        F.pixel_shuffle(torch.randn(3, 3, 3, device="mps"), 2)
