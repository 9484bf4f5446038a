"""tril and triu against the CPU: batches, strides, in place, out=."""

import pytest
import torch

OPS = [torch.tril, torch.triu]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.float32, torch.int64, torch.complex64])
def test_shapes_and_diagonals(op, dtype):
    for shape in [(5, 5), (3, 8), (8, 3), (1, 1), (2, 3, 4, 6), (0, 4), (3, 0, 2), (300, 257)]:
        x = torch.randn(shape).mul(3).to(dtype)
        for diagonal in (-3, -1, 0, 1, 2, 300, -300):
            assert torch.equal(op(x.to("mps"), diagonal).cpu(), op(x, diagonal))


@pytest.mark.parametrize("op", OPS)
def test_strides(op):
    x = torch.randn(4, 6, 7, 5)
    for view in (
        lambda t: t.transpose(-1, -2),
        lambda t: t.permute(3, 1, 0, 2),
        lambda t: t[1:, ::2, 1:, ::2],
        lambda t: t[:1].expand(3, 6, 7, 5),
        lambda t: t[0, 0, :, :1].expand(7, 9),
    ):
        assert torch.equal(op(view(x.to("mps")), 1).cpu(), op(view(x), 1))


@pytest.mark.parametrize("op", ["tril_", "triu_"])
def test_in_place_on_views(op):
    for view in (lambda t: t, lambda t: t.permute(2, 0, 1), lambda t: t[:, 1:, ::2], lambda t: t.permute(1, 0, 2)[::2]):
        cpu = torch.randn(4, 6, 5)
        mps = cpu.to("mps")
        getattr(view(cpu), op)(-1)
        getattr(view(mps), op)(-1)
        assert torch.equal(mps.cpu(), cpu)


@pytest.mark.parametrize("op", OPS)
def test_out(op):
    x = torch.randn(3, 4, 5)
    out = torch.zeros(5, 4, 3, device="mps").permute(2, 1, 0)
    assert op(x.to("mps"), out=out) is out
    assert torch.equal(out.cpu(), op(x))
    leaf = x.to("mps").requires_grad_()
    op(leaf, 1).sum().backward()
    assert torch.equal(leaf.grad.cpu(), op(torch.ones_like(x), 1))


@pytest.mark.parametrize("op", OPS)
def test_errors(op):
    with pytest.raises(RuntimeError) as on_cpu:
        op(torch.ones(3))
    with pytest.raises(RuntimeError) as on_mps:
        op(torch.ones(3, device="mps"))
    assert str(on_mps.value) == str(on_cpu.value)
