"""cross_entropy's own gradient: as PyTorch's composite has it, with all that autograd may ask of it."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import kernels
from test_loss import REDUCTIONS, TOLERANCE, compare, targets

TARGETS = torch.tensor([0, 3, 6, 2])


def scores(*shape):
    return torch.randn(shape, device="mps", requires_grad=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_rows_of_any_length(dtype, reduction):
    """Rows begin at any address, and some end in the middle of a word or of a workgroup's part."""
    for n, classes in ((5, 1), (6, 2), (7, 17), (3, 1027), (3, 4096), (2, 5001), (2, 50257)):
        weight = torch.rand(classes).add(0.1).to(dtype).float()
        for ignored, w in ((-100, None), (1, weight)):
            t = targets((n,), classes, ignored if reduction != "mean" or n > 3 else None)
            compare(
                lambda x, t, w, i=ignored: F.cross_entropy(x, t, w, ignore_index=i, reduction=reduction),
                torch.randn(n, classes) * 3,
                t,
                w,
                dtype=dtype,
            )


def test_one_kernel():
    x = scores(8, 100)
    loss = F.cross_entropy(x, torch.arange(8, device="mps"))
    assert kernels(lambda: torch.autograd.grad(loss, x)) >= {"cross_entropy_backward_f32"}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_second_and_third_derivatives(reduction):
    def derivatives(device):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(1)).to(device).detach().requires_grad_()
        loss = F.cross_entropy(x * x, TARGETS.to(device), reduction=reduction).cos().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum() + loss, x, create_graph=True)
        (third,) = torch.autograd.grad(second.sin().sum(), x)
        return [v.detach().cpu() for v in (first, second, third)]

    for actual, expected in zip(derivatives("mps"), derivatives("cpu"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_scores_and_loss_may_change_in_place():
    """The gradient is of what the loss was computed from, as with PyTorch's own, which keeps the logarithms."""
    x, t = scores(4, 7), TARGETS.to("mps")
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    y = x * 1
    loss = F.cross_entropy(y, t)
    y.zero_()
    loss /= 2
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected / 2)


def test_function_transforms():
    x, t = scores(4, 7), TARGETS.to("mps")
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    torch.testing.assert_close(torch.func.grad(lambda x: F.cross_entropy(x, t))(x), expected)
    each = torch.func.vmap(torch.func.grad(lambda x, t: F.cross_entropy(x[None], t[None])))(x, t)
    torch.testing.assert_close(each / 4, expected)
    _, slope = torch.func.jvp(lambda x: F.cross_entropy(x, t), (x.detach(),), (expected,))
    torch.testing.assert_close(slope, (expected**2).sum())
    batched = torch.autograd.grad(
        F.cross_entropy(x, t, reduction="none"), x, torch.eye(4, device="mps"), is_grads_batched=True
    )[0]
    torch.testing.assert_close(batched.sum(0) / 4, expected)


def test_forward_mode():
    import torch.autograd.forward_ad as fwd

    x, t = scores(4, 7), TARGETS.to("mps")
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    with fwd.dual_level():
        loss = F.cross_entropy(fwd.make_dual(x, expected), t)
        torch.testing.assert_close(fwd.unpack_dual(loss).tangent, (expected**2).sum())


def test_saved_tensor_hooks():
    x, t = scores(4, 7), TARGETS.to("mps")
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    with torch.autograd.graph.save_on_cpu():
        loss = F.cross_entropy(x, t)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_autocast_of_sixteen_bits(reduction, weighted):
    """nll_loss takes floats there, so that the loss is one."""
    y = (torch.randn(6, 700) * 3).bfloat16()
    t = targets((6,), 700, -100)
    weight = torch.rand(700) if weighted else None
    expected_scores = y.float().requires_grad_()
    logarithms = torch.log_softmax(expected_scores, 1)
    expected = F.nll_loss(logarithms, t, weight, reduction=reduction)
    x = y.to("mps").requires_grad_()
    with torch.autocast("mps", torch.bfloat16):
        actual = F.cross_entropy(x, t.to("mps"), None if weight is None else weight.to("mps"), reduction=reduction)
        double = F.cross_entropy(x * x, t.to("mps"), reduction=reduction).sum()
    assert actual.dtype == torch.float32
    tolerance = {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(actual.cpu(), expected, **tolerance)
    ones = torch.ones_like(expected)
    (expected_grad,) = torch.autograd.grad(expected, expected_scores, ones)
    (grad,) = torch.autograd.grad(actual, x, ones.to("mps"))
    assert grad.dtype == torch.bfloat16
    torch.testing.assert_close(grad.cpu().float(), expected_grad, **tolerance)
    (first,) = torch.autograd.grad(double, x, create_graph=True)
    assert torch.autograd.grad(first.sum(), x)[0].isfinite().all()


def test_compiled():
    """Tracing sees PyTorch's own operators."""
    x, t = scores(4, 7), TARGETS.to("mps")
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    loss = torch.compile(lambda x, t: F.cross_entropy(x, t), backend="aot_eager", fullgraph=True)(x, t)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)


def test_traced():
    x, t = scores(4, 7), TARGETS.to("mps")
    traced = torch.jit.trace(lambda x: F.cross_entropy(x, t), (x,))
    torch.testing.assert_close(torch.autograd.grad(traced(x), x)[0], torch.autograd.grad(F.cross_entropy(x, t), x)[0])


def test_errors(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: F.cross_entropy(ones(4, 7).requires_grad_(), ones(3).long()))
    raises_as_on_the_cpu(lambda ones: F.cross_entropy(ones(4, 7).requires_grad_(), ones(4).long(), ones(6)))
