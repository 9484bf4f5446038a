"""What Inductor does with operators of ours: opened to fusion, or called as they are."""

from __future__ import annotations

import sympy
import torch
from torch._inductor.utils import sympy_product

from .device import device_config
from .row_lowering import register_rows

aten = torch.ops.aten


def linear_backward(self, grad_output, weight, output_mask):
    """Of aten::linear_backward, one operator to autograd: products and a sum, which fuse with what is around them."""
    grad, x = grad_output.reshape(-1, grad_output.shape[-1]), self.reshape(-1, self.shape[-1])
    return (
        (grad @ weight).reshape(self.shape) if output_mask[0] else None,
        grad.t() @ x if output_mask[1] else None,
        grad.sum(0) if output_mask[2] else None,
    )


# Elements of a row that a workgroup keeps in registers: a second pass over it costs nothing.
_MAX_ROW_IN_REGISTERS = 8192


def _two_step_variance(original):
    """Sums of squared differences from the mean, instead of Welford's recurrence, for rows that are read once."""

    def use_two_step_variance(x, axis, keepdim, input_dtype):
        if x.get_device().type != "mps" or device_config().software:
            return original(x, axis, keepdim, input_dtype)
        from torch._inductor.lowering import _make_reduction_inner, _validate_reduction_axis

        axis = _validate_reduction_axis(x, axis)
        ranges = _make_reduction_inner(x, axis=axis, keepdims=keepdim, dtype=None, override_return_dtype=None)
        numel = sympy_product(ranges["reduction_ranges"])
        return isinstance(numel, sympy.Integer) and int(numel) <= _MAX_ROW_IN_REGISTERS

    return use_two_step_variance


def register_decompositions() -> None:
    from torch._inductor import decomposition, lowering

    lowering.use_two_step_variance = _two_step_variance(lowering.use_two_step_variance)

    decomposition.decompositions[aten.linear_backward.default] = linear_backward
    register_rows()
