"""Losses and their gradients against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from compare import LOSS as TOLERANCE
from compare import close

REDUCTIONS = ("mean", "sum", "none")


def check(actual, expected, tolerance=1e-5):
    close(actual, expected, tolerance, actual.dtype)


def compare(op, x, *others, dtype=torch.float32):
    """op(x, *others) and the gradient of x; the CPU computes in float32 from the same rounded scores."""
    x = x.to(dtype).float()
    expected_leaf, actual_leaf = x.clone().requires_grad_(), x.to("mps", dtype).requires_grad_()
    moved = [o if o is None or not isinstance(o, torch.Tensor) else o.to("mps") for o in others]
    moved = [o.to(dtype) if isinstance(o, torch.Tensor) and o.is_floating_point() else o for o in moved]
    expected, actual = op(expected_leaf, *others), op(actual_leaf, *moved)
    grad = torch.randn(expected.shape).to(dtype).float()
    check(actual.detach(), expected.detach(), TOLERANCE[dtype])
    (expected_grad,) = torch.autograd.grad(expected, expected_leaf, grad)
    (actual_grad,) = torch.autograd.grad(actual, actual_leaf, grad.to("mps", dtype))
    check(actual_grad, expected_grad, TOLERANCE[dtype])


def targets(shape, classes, ignored=None):
    t = torch.randint(0, classes, shape)
    if ignored is not None and t.dim() > 0:
        t.view(-1)[::3] = ignored
    return t


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_nll_loss(reduction, dtype):
    for shape, classes in (((7, 5), 5), ((1, 3), 3), ((300, 10), 10), ((4,), 4), ((2, 3, 4, 5), 3), ((2, 6, 7), 6)):
        target_shape = (shape[0], *shape[2:]) if len(shape) > 1 else ()
        for weight in (None, torch.rand(classes).to(dtype).float()):
            for ignored in (None, -100, 1):
                t = targets(target_shape, classes, ignored)
                compare(
                    lambda x, t, w, i=ignored: F.nll_loss(
                        x, t, w, ignore_index=-100 if i is None else i, reduction=reduction
                    ),
                    F.log_softmax(torch.randn(shape), min(1, len(shape) - 1)),
                    t,
                    weight,
                    dtype=dtype,
                )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy(reduction):
    for shape in ((7, 5), (2, 3, 4, 5), (4,), (64, 1000), (3, 50_000)):
        target_shape = (shape[0], *shape[2:]) if len(shape) > 1 else ()
        classes = shape[1] if len(shape) > 1 else shape[0]
        t = targets(target_shape, classes)
        compare(lambda x, t: F.cross_entropy(x, t, reduction=reduction), torch.randn(shape) * 4, t)
        compare(lambda x, t: F.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1), torch.randn(shape), t)
    compare(lambda x, t: F.cross_entropy(x, t, reduction=reduction), torch.randn(5, 4), torch.rand(5, 4))


def test_strided_scores():
    x, t = torch.randn(2, 9, 6), targets((2, 9), 6)
    compare(lambda x, t: F.cross_entropy(x.transpose(1, 2), t), x, t)
    compare(lambda x, t: F.nll_loss(x.transpose(1, 2), t), x, t)
    compare(lambda x, t: F.nll_loss(x[:, ::2, :3].flatten(0, 1), t % 3), x, targets((10,), 6))
    compare(lambda x, t: F.nll_loss(x[0], t), x, targets((18,), 6)[::2])


def test_bytes_as_targets():
    x, t = torch.randn(6, 5), targets((6,), 5).to(torch.uint8)
    check(F.nll_loss(x.to("mps"), t.to("mps")), F.nll_loss(x, t))


def test_all_ignored_and_empty():
    x = torch.randn(3, 4)
    for reduction in REDUCTIONS:
        t = torch.full((3,), -100)
        check(F.nll_loss(x.to("mps"), t.to("mps"), reduction=reduction), F.nll_loss(x, t, reduction=reduction))
        empty = torch.empty(0, 4), torch.empty(0, dtype=torch.int64)
        check(F.nll_loss(*(v.to("mps") for v in empty), reduction=reduction), F.nll_loss(*empty, reduction=reduction))
    images, labels = torch.randn(2, 3, 4, 4), torch.full((2, 4, 4), -100)
    check(F.nll_loss(images.to("mps"), labels.to("mps")), F.nll_loss(images, labels))


def test_total_weight():
    x, t, w = torch.randn(5, 4), targets((5,), 4), torch.rand(4)
    for reduction in range(3):
        expected = torch.ops.aten.nll_loss_forward(x, t, w, reduction, -100)
        actual = torch.ops.aten.nll_loss_forward(x.to("mps"), t.to("mps"), w.to("mps"), reduction, -100)
        for a, e in zip(actual, expected, strict=True):
            check(a, e)


def test_a_target_out_of_range_is_reported():
    x = torch.randn(3, 4, device="mps")
    F.nll_loss(x, torch.tensor([0, 4, 1], device="mps"))
    with pytest.raises(torch.AcceleratorError, match="nll_loss"):
        torch.mps.synchronize()
    check(F.nll_loss(x, torch.tensor([0, 3, 1], device="mps")), F.nll_loss(x.cpu(), torch.tensor([0, 3, 1])))


def test_errors():
    x, t = torch.randn(3, 4), torch.tensor([0, 1, 2])
    images, labels = torch.randn(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    forward_2d = torch.ops.aten.nll_loss2d_forward
    cases = [
        lambda d: F.nll_loss(x.to(d), t.int().to(d)),
        lambda d: F.nll_loss(x.long().to(d), t.to(d)),
        lambda d: F.nll_loss(x.to(d), t.to(d), torch.ones(3).to(d)),
        lambda d: F.nll_loss(x.to(d), t.to(d), torch.ones(4).half().to(d)),
        lambda d: F.nll_loss(x.to(d), t[:2].to(d)),
        lambda d: F.nll_loss(images.to(d), labels.int().to(d)),
        lambda d: F.nll_loss(images.to(d), labels[:, :3].to(d)),
        lambda d: F.nll_loss(images.to(d), labels.to(d), torch.ones(2).to(d)),
        lambda d: forward_2d(images[0].to(d), labels.to(d), None, 1, -100),
        lambda d: forward_2d(images.to(d), labels[0].to(d), None, 1, -100),
    ]
    for case in cases:
        with pytest.raises(Exception) as expected:
            case("cpu")
        with pytest.raises(expected.type) as actual:
            case("mps")
        assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_elementwise_losses(reduction, dtype):
    x, y = torch.randn(5, 7), torch.randn(5, 7).to(dtype).float()
    for op in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
        compare(lambda x, y, op=op: op(x, y, reduction=reduction), x, y, dtype=dtype)
    compare(lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction=reduction), x, y, dtype=dtype)
    compare(lambda x, y: F.huber_loss(x, y, delta=0.7, reduction=reduction), x, y, dtype=dtype)
    p, q = torch.rand(5, 7) * 0.8 + 0.1, torch.rand(5, 7).to(dtype).float()
    compare(lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction), x, q, dtype=dtype)
    compare(lambda x, y: F.kl_div(x, y, reduction=reduction), x, q, dtype=dtype)
    if dtype == torch.float32:
        weight = torch.rand(5, 7)
        compare(lambda x, y, w: F.binary_cross_entropy(x, y, w, reduction=reduction), p, q, weight)
        compare(lambda x, y: F.binary_cross_entropy(x, y, reduction=reduction), p, q)


def test_binary_cross_entropy_at_its_ends():
    p, q = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    for reduction in REDUCTIONS:
        compare(lambda x, y, r=reduction: F.binary_cross_entropy(x, y, reduction=r), p, q)
