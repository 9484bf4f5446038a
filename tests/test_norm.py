"""Layer, RMS, batch and group norm with their gradients against the CPU."""

import pytest
import torch
import torch.nn.functional as F

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def check(actual, expected, tolerance=None):
    if expected is None:
        assert actual is None
        return
    assert (actual.device.type, actual.shape) == ("mps", expected.shape)
    tolerance = tolerance or TOLERANCE[actual.dtype]
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(
        actual.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True
    )


def outputs_and_gradients(op, inputs, grad, device, dtype):
    leaves = [None if t is None else t.to(device, dtype).requires_grad_() for t in inputs]
    out = op(*leaves)
    return [out.detach(), *torch.autograd.grad(out, [t for t in leaves if t is not None], grad.to(device, dtype))]


def compare(op, inputs, dtype=torch.float32, tolerance=None):
    """op's output and the gradients of all inputs on mps, against float32 of the same rounded inputs on the CPU."""
    inputs = [None if t is None else t.to(dtype).float() for t in inputs]
    grad = torch.randn(op(*inputs).shape).to(dtype).float()
    expected = outputs_and_gradients(op, inputs, grad, "cpu", torch.float32)
    actual = outputs_and_gradients(op, inputs, grad, "mps", dtype)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        check(a, e, tolerance)


def with_affine(x, shape):
    """(x, w, b) in the ways that modules call a norm."""
    w, b = torch.randn(shape), torch.randn(shape)
    return [(x, w, b), (x, w, None), (x, None, None)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 70])
def test_layer_norm(dtype, rows):
    for shape, normalized in (((rows, 7), (7,)), ((rows, 64), (64,)), ((rows, 3, 8), (3, 8)), ((2, rows, 300), (300,))):
        for x, w, b in with_affine(torch.randn(shape), normalized):
            compare(lambda x, w, b, n=normalized: F.layer_norm(x, n, w, b), (x, w, b), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 70])
def test_rms_norm(dtype, rows):
    for shape, normalized in (((rows, 7), (7,)), ((rows, 64), (64,)), ((rows, 3, 8), (3, 8)), ((2, rows, 300), (300,))):
        for x, w, _ in with_affine(torch.randn(shape), normalized)[1:]:
            compare(lambda x, w, n=normalized: F.rms_norm(x, n, w), (x, w), dtype)
            compare(lambda x, w, n=normalized: F.rms_norm(x, n, w, eps=1e-3), (x, w), dtype)


def test_long_rows_and_many_rows():
    for shape in ((3, 20_000), (5000, 16), (1, 4097)):
        for x, w, b in with_affine(torch.randn(shape), shape[1:])[:1]:
            compare(lambda x, w, b, n=shape[1:]: F.layer_norm(x, n, w, b), (x, w, b))
            compare(lambda x, w, n=shape[1:]: F.rms_norm(x, n, w), (x, w))


def test_layer_norm_of_views():
    x = torch.randn(4, 6, 5, 8)
    layouts = [
        (lambda t: t.permute(0, 2, 3, 1), (6,)),
        (lambda t: t[:, :, 1:, ::2], (4,)),
        (lambda t: t.transpose(0, 1), (5, 8)),
        (lambda t: t.permute(1, 0, 3, 2), (8, 5)),
        (lambda t: t.flatten()[1:701].view(-1, 7)[:, :5], (5,)),
        (lambda t: t[:1].expand(3, -1, -1, -1), (8,)),
    ]
    for layout, normalized in layouts:
        w, b = torch.randn(normalized), torch.randn(normalized)
        compare(lambda x, w, b, view=layout, n=normalized: F.layer_norm(view(x), n, w, b), (x, w, b))
        compare(lambda x, w, view=layout, n=normalized: F.rms_norm(view(x), n, w), (x, w))


def test_mean_far_from_zero():
    x = torch.randn(6, 4, 500) + 1e4
    exact = F.layer_norm(x.double(), (500,))
    check(F.layer_norm(x.to("mps"), (500,)), exact, 2e-3)


def test_mixed_dtypes():
    x, w, b = torch.randn(4, 32).half(), torch.randn(32), torch.randn(32)
    check(F.layer_norm(x.to("mps"), (32,), w.to("mps"), b.to("mps")), F.layer_norm(x.float(), (32,), w, b))
    check(F.rms_norm(x.to("mps"), (32,), w.to("mps")), F.rms_norm(x.float(), (32,), w))


def test_layer_norm_statistics():
    x, w, b = torch.randn(3, 4, 10), torch.randn(10), torch.randn(10)
    actual = torch.native_layer_norm(x.to("mps"), (10,), w.to("mps"), b.to("mps"), 1e-5)
    for a, e in zip(actual, torch.native_layer_norm(x, (10,), w, b, 1e-5), strict=True):
        check(a, e)


def test_empty_layer_norm():
    for shape in ((0, 5), (2, 0, 5)):
        compare(lambda x, w, b: F.layer_norm(x, (5,), w, b), (torch.empty(shape), torch.ones(5), torch.ones(5)))


def test_layer_norm_errors():
    x = torch.ones(3, 4)
    cases = [
        lambda t: F.layer_norm(t, (3,)),
        lambda t: F.layer_norm(t, ()),
        lambda t: F.layer_norm(t, (4,), t[0, :3]),
        lambda t: F.rms_norm(t, (3,)),
        lambda t: F.rms_norm(t, (4,), t[0, :3]),
    ]
    for case in cases:
        with pytest.raises(Exception) as expected:
            case(x)
        with pytest.raises(expected.type) as actual:
            case(x.to("mps"))
        assert str(actual.value) == str(expected.value)
