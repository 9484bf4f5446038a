"""complex32: tensors are made, moved, copied, viewed and printed; kernels do not compute in it, and say so."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


@pytest.fixture
def pairs():
    return torch.randn(5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).to(torch.complex32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    assert a.dtype == b.dtype == torch.complex32 and a.shape == b.shape
    return torch.equal(a.cpu().to(torch.complex64), b.cpu().to(torch.complex64))


@pytest.mark.parametrize("layout", [lambda t: t, lambda t: t.t(), lambda t: t[1:, ::2], lambda t: t.conj()])
def test_copies(pairs, layout):
    z = layout(pairs.to("mps"))
    assert same(z, layout(pairs))
    assert same(z.clone(), layout(pairs)) and same(z.contiguous(), layout(pairs))
    assert torch.equal(z.to(torch.complex64).cpu(), layout(pairs).to(torch.complex64))
    assert same(z.to(torch.complex64).chalf(), layout(pairs))
    target = torch.empty(3, *z.shape, dtype=torch.complex32, device="mps")
    assert same(target.copy_(z), layout(pairs).expand(3, *z.shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_conversions(pairs, dtype):
    x = torch.arange(6).to(dtype)
    assert same(x.to("mps").chalf(), x.to(torch.complex64).to(torch.complex32))
    target = torch.ones(6, dtype=torch.complex32, device="mps").conj()
    assert torch.equal(target.copy_(x.to("mps")).cpu().to(torch.complex64), x.to(torch.complex64))
    if dtype.is_floating_point:
        assert torch.equal(pairs.to("mps").real.to(dtype).cpu(), pairs.real.to(dtype))


def test_values_and_views(pairs):
    z = pairs.to("mps")
    assert same(z.view(7, 5).permute(1, 0)[2:], pairs.view(7, 5).permute(1, 0)[2:])
    assert torch.equal(torch.view_as_real(z).cpu(), torch.view_as_real(pairs))
    assert same(torch.view_as_complex(torch.view_as_real(z)), pairs)
    assert z[1, 2].item() == pairs[1, 2].item() and z.tolist() == pairs.tolist()
    z[0] = 2 - 1j
    z.imag[1] = 3
    assert z[0, 3].item() == 2 - 1j and z[1, 0].imag.item() == 3
    assert same(torch.zeros(3, dtype=torch.complex32, device="mps"), torch.zeros(3, dtype=torch.complex32))
    assert same(torch.cat([pairs.to("mps")] * 2), torch.view_as_complex(torch.cat([torch.view_as_real(pairs)] * 2)))
    real, imag = torch.randn(2, 9).half()
    assert torch.equal(torch.complex(real.to("mps"), imag.to("mps")).imag.cpu(), imag)
    assert "complex32" in repr(torch.complex(real, imag).to("mps"))


def test_gradients():
    x = torch.randn(4, 2, device="mps").half().requires_grad_()
    torch.view_as_complex(x).real.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0]] * 4


def test_arithmetic_raises(pairs):
    z = pairs.to("mps")
    for call in (lambda: z + z, lambda: z.sin(), lambda: z.sum(), lambda: z @ z.t()):
        with pytest.raises((NotImplementedError, RuntimeError), match="not implemented for 'ComplexHalf'|ComplexHalf"):
            call()
    assert same(z, pairs)
