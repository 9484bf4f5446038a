"""What Inductor does with operators of ours: opened to fusion, or called as they are."""

from __future__ import annotations

import functools

import sympy
import torch
from torch._decomp import decompositions
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import ops

from .corrections import multilabel_margin_loss_forward, register_corrections
from .device import device_config
from .row_lowering import PREFERRED, floor_division, register_rows

aten = torch.ops.aten

# Operators of ours that passes put into graphs; they are called.
OWN_CALLED = (
    "addmm_epilogue",
    "addmm_epilogue_and_first",
    "addmm_norm",
    "attention_backward_in_one",
    "convert_all",
    "convolution_epilogue",
)


def linear_backward(self, grad_output, weight, output_mask):
    """Of aten::linear_backward, one operator to autograd: products and a sum, which fuse with what is around them."""
    grad, x = grad_output.reshape(-1, grad_output.shape[-1]), self.reshape(-1, self.shape[-1])
    return (
        (grad @ weight).reshape(self.shape) if output_mask[0] else None,
        grad.t() @ x if output_mask[1] else None,
        grad.sum(0) if output_mask[2] else None,
    )


def _of_mps(ours, original):
    """A decomposition for graphs of mps; other devices keep the one that they have, or none."""

    def decompose(*args, **kwargs):
        tensors = (a for a in args if isinstance(a, torch.Tensor))
        if any(t.device.type == "mps" for t in tensors):
            return ours(*args, **kwargs)
        return NotImplemented if original is None else original(*args, **kwargs)

    return decompose


def repeat_interleave(repeat, output_size=None):
    """Inductor's own, which leaves mps out: positions never leave the input, whatever the size that was promised."""
    if type(output_size) is not int:
        return NotImplemented
    position = torch.arange(output_size, device=repeat.device)
    found = torch.searchsorted(repeat.cumsum(0), position, out_int32=repeat.dtype == torch.int32, right=True)
    return torch.clamp(found, max=repeat.size(0) - 1)


def _kept(*_, **__):
    """No decomposition."""
    return NotImplemented


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


def _with_logical_index(original):
    """Argmax and argmin over several dimensions: loops may run in another order than that of the index to be told."""

    def make_reduction_inner(x, *, reduction_type=None, **kwargs):
        made = original(x, reduction_type=reduction_type, **kwargs)
        sizes = made["reduction_ranges"]
        if reduction_type not in ("argmax", "argmin") or len(sizes) < 2 or x.get_device().type != "mps":
            return made
        value_at = made["inner_fn"]

        def value_and_index(index, reduction_index):
            value = value_at(index, reduction_index)
            if isinstance(value, tuple):  # with PyTorch's own index, which 2.15 gives more often than older versions
                return value
            position = sympy.S.Zero
            for i, size in zip(reduction_index, sizes, strict=True):
                position = sympy.expand(position * size + i)
            return value, ops.index_expr(position, torch.int64)

        return {**made, "inner_fn": value_and_index}

    return make_reduction_inner


def _without_float8(original):
    """Operators that read or write float8 tensors of mps are called, as those of complex numbers are."""

    def unsupported_input_tensor(t, node=None):
        is_float8 = t.dtype.is_floating_point and t.dtype.itemsize == 1
        return (is_float8 and t.device.type == "mps") or original(t, node)

    return unsupported_input_tensor


def _with_online_softmax(original):
    """Largest value and sum of exponentials in one pass over rows that are too long for registers."""

    def prepare_softmax_extra_check(match):
        x, dim = match.kwargs["x"].meta["val"], match.kwargs["dim"]
        if x.device.type != "mps":
            return original(match)
        size = x.shape[dim] if isinstance(dim, int) and x.dim() else None
        return isinstance(size, int) and size > _MAX_ROW_IN_REGISTERS and not device_config().software

    return prepare_softmax_extra_check


def _corrected_two_pass(original):
    """Moments by distances from a mean that rounding has moved: their own mean corrects it and the variance.

    Rows of equal numbers have that number for their mean, and no variance (T. F. Chan, G. H. Golub, R. J. LeVeque,
    "Algorithms for computing the sample variance", 1983, equation 1.7).
    """
    from torch._inductor import lowering

    def var_mean_sum_(x, axis, correction, keepdim, return_mean):
        if x.get_device().type != "mps":
            return original(x, axis, correction, keepdim, return_mean)
        axis = lowering._validate_reduction_axis(x, axis)
        count = sympy_product(x.get_size()[i] for i in axis)
        first = lowering.mean(x, axis, keepdim=True)
        first.realize()
        distances = lowering.sub(x, first)
        rest = lowering.mean(distances, axis, keepdim=True)
        squares = lowering.sum_(lowering.square(distances), axis, keepdims=True)
        squares = lowering.sub(squares, lowering.mul(lowering.square(rest), _number(count, x, rest)))
        squares = lowering.maximum(squares, _number(0, x, rest))
        freedom = count - (1 if correction is None else correction)
        results = [lowering.div(squares, _number(sympy.Max(freedom, 0), x, rest))]
        if return_mean:
            results.append(lowering.add(first, rest))
        return tuple(results if keepdim else (lowering.squeeze(result, axis) for result in results))

    return var_mean_sum_


def _number(value, like, shaped):
    """A constant of the dtype of `like`, expanded to the sizes of `shaped`."""
    from torch._inductor import ir

    constant = ir.IndexingConstant(index=value, dtype=like.get_dtype(), device=like.get_device())
    return ir.ExpandView.create(constant, list(shaped.get_size()))


def _with_bias(original):
    """Transposed convolutions add their bias before they round; Inductor's way for GPUs adds it to their results.

    Epilogues do that for the others.
    """
    from torch._inductor.lowering import fallback_handler

    call = fallback_handler(aten.convolution.default, add_to_fallback_set=False)

    def convolution(x, weight, bias, stride, padding, dilation, transposed, *args):
        arguments = (x, weight, bias, stride, padding, dilation, transposed, *args)
        is_ours = transposed and bias is not None and x.get_device().type == "mps" and x.get_dtype().itemsize == 2
        return call(*arguments) if is_ours else original(*arguments)

    return convolution


def _with_strides_of_eager(original):
    """Gradients of convolutions read their operands as eager ones do, which Inductor's constraint has seen to.

    Its lowering orders both as the gradient of the weight: of depthwise ones, with one channel a group, as NCHW.
    """
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    call = fallback_handler(aten.convolution_backward.default, add_to_fallback_set=False)

    def convolution_backward(grad_out, *args):
        is_ours = grad_out.get_device().type == "mps" and not V.graph.layout_opt
        return call(grad_out, *args) if is_ours else original(grad_out, *args)

    return convolution_backward


def _with_generators(original):
    """Operators that draw from a generator of the graph's inputs, of which Inductor makes examples for CUDA alone."""
    from torch._inductor import ir

    def graphsafe_run_with_rng_state(op, *args, rng_state=None, **kwargs):
        if isinstance(rng_state, ir.GeneratorState) and rng_state.device.type == "mps":
            example = torch.mps.default_generators[0].clone_state()
            rng_state = ir.OpaqueObjectState(name=rng_state.get_name(), value=example)
        return original(op, *args, rng_state=rng_state, **kwargs)

    return graphsafe_run_with_rng_state


def _wide_product(original):
    """mm of 16-bit floats with float32 as the dtype of the result, which Inductor's own has for CUDA and XPU."""
    from torch._inductor.kernel.mm import aten_mm_dtype, mm_args

    def mm(mat1, mat2, out_dtype=None, *, layout=None):
        if out_dtype is None or mat1.get_device().type != "mps":
            return original(mat1, mat2, *(() if out_dtype is None else (out_dtype,)), layout=layout)
        *_, layout, mat1, mat2 = mm_args(mat1, mat2, layout=layout, out_dtype=out_dtype)
        return aten_mm_dtype.bind([mat1, mat2], layout, out_dtype=out_dtype).output_node()

    return mm


def _any_of_bytes(original):
    """Of uint8 it is uint8, which Inductor's own forgets."""
    from torch._inductor import lowering

    def reduce_any(x, *args, **kwargs):
        is_bytes = x.get_dtype() == torch.uint8 and x.get_device().type == "mps"
        result = original(x, *args, **kwargs)
        return lowering.to_dtype(result, torch.uint8) if is_bytes else result

    return reduce_any


def _root_of_power(original):
    """x ** -0.5 is the reciprocal root in eager mode, which for -inf is NaN where the power is 0."""
    from torch._inductor import ir, lowering

    def power(a, b):
        is_root = isinstance(b, float) and b == -0.5 and isinstance(a, ir.IRNode) and a.get_dtype().is_floating_point
        return lowering.rsqrt(a) if is_root and a.get_device().type == "mps" else original(a, b)

    return power


def _zero_times_integers(original):
    """Of products with the number 0 Inductor makes zeros, which they are not where a factor is infinite or NaN."""

    def add_peephole_patterns(self):
        original(self)
        for node in list(self.node_replacements):
            value = node.meta["val"]
            if value.device.type == "mps" and (value.is_floating_point() or value.is_complex()):
                for known in (self.node_replacements, self.node_replacements_shapes, self.constant_data_ptrs):
                    known.pop(node, None)

    return add_peephole_patterns


def _from_a_copy_of_itself(original):
    """A tensor written with a view of itself, whose clone Inductor drops: one kernel would read what it writes."""
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    def realize_into(src, dst, unsafe_alias=False):
        dst.realize()  # as the original does: it has a name then
        box = src.data if isinstance(src, ir.TensorBox) else src
        if box.get_device().type == "mps" and dst.get_name() in box.get_read_names():
            V.graph.mark_buffer_mutated(dst.get_name())  # others that read it come before this one
            box.realize()  # what reads other elements than it writes is not fused then
        return original(src, dst, unsafe_alias)

    return realize_into


def _indexed_by_what_it_was(original):
    """x[i] = x.clone(), x[x] = y: Inductor drops the clone, and one kernel would read what it writes."""
    from torch._inductor import ir

    @functools.wraps(original)
    def index_put_impl_(self, indices, values, *args, **kwargs):
        if self.get_device().type == "mps":
            self.realize()  # as the original does: it has a name then
            name = self.get_name()

            def apart(x):
                is_read = name == ir.try_get_name(x) or name in x.get_read_names()
                return ir.ExternKernel.copy_input(x) if is_read else x

            indices = [i if i is None else apart(i) for i in indices]
            computed = isinstance(values.data, ir.StorageBox) and isinstance(values.data.data, ir.Loops)
            values = values if computed else apart(values)  # the original stores what is computed
        return original(self, indices, values, *args, **kwargs)

    return index_put_impl_


def register_decompositions() -> None:
    from torch._inductor import decomposition, ir, lowering, utils
    from torch._inductor.fx_passes import joint_graph, post_grad

    folder = joint_graph.UniformValueConstantFolder
    folder._add_peephole_patterns = _zero_times_integers(folder._add_peephole_patterns)
    layout = ir.MutationLayoutSHOULDREMOVE
    layout.realize_into = staticmethod(_from_a_copy_of_itself(layout.realize_into))
    lowering.index_put_impl_ = _indexed_by_what_it_was(lowering.index_put_impl_)
    post_grad.prepare_softmax_extra_check = _with_online_softmax(post_grad.prepare_softmax_extra_check)
    op = torch._prims.rng_prims.graphsafe_run_with_rng_state
    lowering.lowerings[op] = _with_generators(lowering.lowerings[op])
    for op in (aten.convolution, aten.convolution.default):
        lowering.lowerings[op] = _with_bias(lowering.lowerings[op])
    op = aten.convolution_backward.default
    lowering.lowerings[op] = _with_strides_of_eager(lowering.lowerings[op])
    for op in (aten.any.default, aten.any.dim, aten.any.dims):
        lowering.lowerings[op] = _any_of_bytes(lowering.lowerings[op])
    for op in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        lowering.lowerings[op] = floor_division(lowering.lowerings[op])
    for op in (aten.pow, *(getattr(aten.pow, name) for name in aten.pow.overloads())):
        if op in lowering.lowerings:
            lowering.lowerings[op] = _root_of_power(lowering.lowerings[op])
    lowering.lowerings[aten.mm.dtype] = _wide_product(lowering.lowerings[aten.mm.dtype])

    for op in (aten.grid_sampler_3d.default, aten.grid_sampler_3d_backward.default):
        if op not in lowering.lowerings:
            lowering.make_fallback(op, warn=False)  # an operator of mps alone: PyTorch's list of called ones lacks it
    for name in OWN_CALLED:  # as implicit_fallbacks does, which may be off
        op = getattr(torch.ops.anymps, name).default
        constraint = lowering.tag_to_layout_constraint(lowering.get_layout_constraint_tag(op))
        lowering.make_fallback(op, layout_constraint=constraint, warn=False)
    lowering.unsupported_input_tensor = _without_float8(lowering.unsupported_input_tensor)
    big_gpu = utils.is_big_gpu
    utils.is_big_gpu = lambda device=0: getattr(device, "type", "") != "mps" and big_gpu(device)  # would warn
    lowering.use_two_step_variance = _two_step_variance(lowering.use_two_step_variance)
    lowering.var_mean_sum_ = _corrected_two_pass(lowering.var_mean_sum_)
    lowering._make_reduction_inner = _with_logical_index(lowering._make_reduction_inner)

    table = decomposition.decompositions
    for op, ours in (
        (aten.linear_backward.default, linear_backward),
        *((op, _kept) for op in PREFERRED),
        (aten.repeat_interleave.Tensor, repeat_interleave),
        (aten.multilabel_margin_loss_forward.default, multilabel_margin_loss_forward),
    ):
        table[op] = _of_mps(ours, table.get(op))
    register_corrections()
    decomposition.fast_random_decomps.cache_clear()  # a copy of the tables
    # Our kernel at autograd's key hands traced tensors to a composite that stores the mask as floats.
    aten.dropout.default.py_impl(torch._C.DispatchKey.AutogradMPS)(decompositions.dropout)
    register_rows()
