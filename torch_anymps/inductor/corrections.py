"""Where PyTorch's lowerings and decompositions give other results than its eager operators, on every device."""

from __future__ import annotations

import functools

import sympy
import torch
from torch._inductor.virtualized import V

aten = torch.ops.aten


def _sums_of_whole_windows(op, original):
    """Gradients of averages whose last window leaves the padded input: it is divided by the part that is inside.

    Inductor's own divides by the whole window, as if ceil_mode were False.
    """
    from torch._inductor.lowering import fallback_handler

    call = fallback_handler(op, add_to_fallback_set=False)

    @functools.wraps(original)
    def avg_pool_backward(grad, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
        arguments = (grad, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
        if grad.get_device().type != "mps" or not (ceil_mode and count_include_pad and divisor_override is None):
            return original(*arguments)
        dims = len(kernel)
        ends = zip(grad.get_size()[-dims:], x.get_size()[-dims:], kernel, stride or kernel, padding or [0] * dims)
        are_inside = (
            V.graph.sizevars.statically_known_true(sympy.Le((out - 1) * step + size, n + 2 * pad))
            for out, n, size, step, pad in ends
        )
        return original(*arguments) if all(are_inside) else call(*arguments)

    return avg_pool_backward


def _called(op, original):
    """The eager operator: Inductor's fractional_max_pool3d takes random samples in the order of those of two sizes."""
    from torch._inductor.lowering import fallback_handler

    call = fallback_handler(op, add_to_fallback_set=False)

    @functools.wraps(original)
    def lowering(x, *args):
        return call(x, *args) if x.get_device().type == "mps" else original(x, *args)

    return lowering


def multilabel_margin_loss_forward(x, target, reduction):
    """Terms of the labels before the first -1 alone; PyTorch's has those of class 0 for each place behind it."""
    n = x.shape[-1] if x.dim() else 1
    torch._check(
        x.dim() <= 2 and n != 0,
        lambda: f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {x.shape}",
    )
    torch._check(
        target.shape == x.shape,
        lambda: f"inconsistent target size: {target.shape} for input of size: {x.shape}",
    )
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    place = torch.arange(n, device=x.device)
    end = torch.where(labels == -1, place, n).amin(-1, keepdim=True)
    counts = place < end
    of_label = rows.gather(-1, torch.where(counts, labels, 0))
    is_target = (place == torch.where(counts, labels, -1).unsqueeze(-1)).any(1)
    terms = (1.0 - of_label.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0) / n
    losses = torch.where(counts.unsqueeze(-1) & ~is_target.unsqueeze(1), terms, 0).sum((1, 2))
    result = {0: losses.reshape(x.shape[:-1]), 1: losses.mean(), 2: losses.sum()}[reduction]
    return result, is_target.to(x.dtype).reshape(x.shape)


def register_corrections() -> None:
    from torch._inductor import lowering

    for op in (aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default):
        lowering.lowerings[op] = _sums_of_whole_windows(op, lowering.lowerings[op])
    op = aten.fractional_max_pool3d.default
    lowering.lowerings[op] = _called(op, lowering.lowerings[op])
    # PyTorch's own is at the key Autograd of every device, which that of mps comes before.
    op = aten.multilabel_margin_loss_forward.default
    op.py_impl(torch._C.DispatchKey.AutogradMPS)(multilabel_margin_loss_forward)
