"""relu under autocast keeps a bit an element for its gradient, not its float32 result."""

import itertools

import pytest
import torch
import torch.nn.functional as F

SHAPES = [(4, 16, 33, 35), (70_001,), (2, 3, 5, 7)]  # the last is small: PyTorch's own way


def values(shape, channels_last=False):
    x = torch.randn(shape)
    x.view(-1)[:5] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")])
    return x.to(memory_format=torch.channels_last) if channels_last else x


def result_and_gradient(x, grad, device, autocast, in_place):
    """Of x + 0, whose result has a history, as in-place functions need it."""
    x = x.to(device).requires_grad_()
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        y = F.relu(x + 0, inplace=in_place)
    return y, torch.autograd.grad(y, x, grad.to(device), retain_graph=True)[0]


@pytest.mark.parametrize("shape, in_place", itertools.product(SHAPES, (False, True)))
def test_results_and_gradients_are_those_of_the_cpu(shape, in_place):
    for channels_last in (False, True) if len(shape) == 4 else (False,):
        x = values(shape, channels_last)
        for grad in (torch.randn_like(x), torch.randn(shape), torch.randn(1).expand(shape)):
            got = result_and_gradient(x, grad, "mps", True, in_place)
            wanted = result_and_gradient(x, grad, "cpu", False, in_place)
            for g, w in zip(got, wanted):
                torch.testing.assert_close(g.cpu(), w, rtol=0, atol=0, equal_nan=True)
            assert got[0].stride() == wanted[0].stride()


def test_the_result_is_not_kept(no_garbage):
    """Once the result is gone, a thirty-second part of its memory is held."""
    x = torch.randn(1 << 20, device="mps").requires_grad_()
    y = x + 0
    before = torch.accelerator.memory_allocated()
    with torch.autocast("mps", torch.bfloat16):
        z = F.relu(y)
        total = z.bfloat16()
    del z
    assert torch.accelerator.memory_allocated() - before == (2 << 20) + (1 << 17)
    assert total.requires_grad


@pytest.mark.parametrize("in_place", (False, True))
def test_a_saved_input_that_changes_raises(in_place):
    """In-place relu counts as a change: what was saved of its input is found to be stale."""
    x = torch.randn(1 << 17, device="mps").requires_grad_()
    with torch.autocast("mps", torch.bfloat16):
        y = x + 0
        square = y * y
        F.relu(y, inplace=in_place)
    if not in_place:
        return square.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_second_derivatives():
    x = torch.randn(1 << 17, device="mps").requires_grad_()
    with torch.autocast("mps", torch.bfloat16):
        y = F.relu(x * x * x)
    first = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), x)[0]
    torch.testing.assert_close(first.cpu(), (3 * x * x * (x > 0)).detach().cpu())
    torch.testing.assert_close(second.cpu(), (6 * x * (x > 0)).detach().cpu())


def test_batched_gradients():
    x = torch.randn(1 << 16, device="mps").requires_grad_()
    with torch.autocast("mps", torch.bfloat16):
        y = F.relu(x + 0)
    grads = torch.randn(3, 1 << 16, device="mps")
    got = torch.autograd.grad(y, x, grads, is_grads_batched=True)[0]
    torch.testing.assert_close(got.cpu(), (grads * (x > 0)).cpu().detach())


def test_transforms_and_leaves_go_pytorchs_own_way():
    x = torch.randn(1 << 16, device="mps")
    with torch.autocast("mps", torch.bfloat16):
        gradient = torch.func.grad(lambda t: F.relu(t).sum())(x)
        rows = torch.func.vmap(F.relu)(x.view(4, -1))
        tangent = torch.func.jvp(F.relu, (x,), (torch.ones_like(x),))[1]
        with pytest.raises(RuntimeError, match="leaf Variable"):
            F.relu(torch.zeros_like(x).requires_grad_(), inplace=True)
    torch.testing.assert_close(gradient.cpu(), (x > 0).float().cpu())
    torch.testing.assert_close(tangent.cpu(), (x > 0).float().cpu())
    torch.testing.assert_close(rows.view(-1).cpu(), x.cpu().relu())


def test_checkpoints_and_hooks_on_what_is_saved():
    x = torch.randn(1 << 16, device="mps").requires_grad_()
    with torch.autocast("mps", torch.bfloat16):
        y = torch.utils.checkpoint.checkpoint(lambda t: F.relu(t * 2), x, use_reentrant=False)
        with torch.autograd.graph.save_on_cpu():
            z = F.relu(x * 2)
    for result in (y, z):
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0].cpu(), 2 * (x > 0).float().cpu())
