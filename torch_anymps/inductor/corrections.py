"""Where PyTorch's lowerings and decompositions give other results than its eager operators, on every device."""

from __future__ import annotations

import functools

import sympy
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRangeError

from .product_passes import is_backward

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


def _of_one_image(original):
    """Gradients of max_pool2d without a batch: Inductor asks for channels-last of any whose second stride is 1."""
    from torch._inductor import lowering

    @functools.wraps(original)
    def max_pool_backward(grad, x, kernel, stride, padding, dilation, ceil_mode, indices):
        sizes = kernel, stride, padding, dilation, ceil_mode
        if grad.get_device().type != "mps" or len(x.get_size()) != 3:
            return original(grad, x, *sizes, indices)
        grad, x, indices = (lowering.unsqueeze(t, 0) for t in (grad, x, indices))
        return lowering.squeeze(original(grad, x, *sizes, indices), 0)

    return max_pool_backward


def _inside_the_input(original):
    """Positions of maxima: of windows that hold nothing above the padding, -inf, Inductor tells that of the padding."""

    @functools.wraps(original)
    def pool_offsets_to_indices(offsets, kernel_size, input_size, increments_to_index):
        def index(*args):
            return [sympy.Max(i, 0) for i in increments_to_index(*args)]

        is_ours = offsets.get_device().type == "mps"
        return original(offsets, kernel_size, input_size, index if is_ours else increments_to_index)

    return pool_offsets_to_indices


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


def _read_by_kernels_of_mps(original):
    """Numbers of the CPU, which kernels of mps are given as such: computed there first if they are parts of tensors."""
    from torch._inductor import ir

    @functools.wraps(original)
    def run_node(self, node):
        result = original(self, node)
        x = node.meta.get("val") if node.op == "call_function" else None
        if not isinstance(result, ir.TensorBox) or not isinstance(x, torch.Tensor) or not x.is_cpu or x.dim():
            return result
        others = (user.meta.get("val") for user in node.users)
        if not any(isinstance(other, torch.Tensor) and other.is_mps for other in others):
            return result
        sources = (V.graph.try_get_buffer(name) for name in result.get_read_names())
        if all(source is None or not source.get_size() for source in sources):
            return result
        if isinstance(result.data, ir.StorageBox):
            result.realize()
            return result
        return ir.ExternKernel.copy_input(result)

    return run_node


def _one_dtype_after_another(original):
    """Numbers of the CPU that graphs of mps are given, to be replayed: copied in one tensor of each dtype.

    Inductor's one tensor for all of them makes floats of integers.
    """

    @functools.wraps(original)
    def call(self, graph):
        values = (node.meta.get("val") for node in graph.find_nodes(op="placeholder"))
        dtypes = dict.fromkeys(x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_cpu)
        self.dtype = None
        if self.target != "mps" or not self.allow_inputs or not dtypes:
            original(self, graph)
            return
        for self.dtype in dtypes:
            original(self, graph)

    return call


def _movable_to_mps(original):
    @functools.wraps(original)
    def find_movable_constructors(self, graph, constructors):
        if self.target == "mps":
            of_dtype = (n for n in constructors if n.op != "placeholder" or n.meta["val"].dtype == self.dtype)
            constructors = [n for n in of_dtype if not _stays_on_the_cpu(n)]
        return original(self, graph, constructors)

    return find_movable_constructors


def _not_movable_to_mps(original):
    @functools.wraps(original)
    def cannot_be_moved(self, node):
        return (self.target == "mps" and _stays_on_the_cpu(node)) or original(self, node)

    return cannot_be_moved


def _stays_on_the_cpu(node: torch.fx.Node) -> bool:
    """Doubles, which mps lacks, and what the graph returns: Inductor would return it on the other device."""
    x = node.meta.get("val")
    if not isinstance(x, torch.Tensor) or not x.is_cpu:
        return False
    is_returned = node.op != "placeholder" and any(user.op == "output" for user in node.users)
    return is_returned or x.dtype in (torch.float64, torch.complex128)


def _whole_numbers_of_bits() -> None:
    """&, | and ^ of dynamic integers are integers, which Sympy is not told: sums were floats."""
    from sympy.core.assumptions import _prepare_class_assumptions
    from torch.utils._sympy import functions

    for name in ("and", "or", "xor"):
        function = getattr(functions, f"BitwiseFn_bitwise_{name}")
        function.is_integer = True
        _prepare_class_assumptions(function)


def _with_dynamic_numbers(original):
    """Powers of integers are called: with dynamic numbers those of a number, which PyTorch takes for tensors."""
    from torch._inductor import lowering

    def fallback_pow_tensor_tensor(a, b):
        if isinstance(a, sympy.Expr):
            return lowering.fallback_pow_scalar(a, b)
        return (lowering.fallback_pow_tensor_scalar if isinstance(b, sympy.Expr) else original)(a, b)

    return fallback_pow_tensor_tensor


def _known_or_false(original):
    """Of dynamic strides, whether one is not less than another: false, too, where their remainder has no bounds.

    Sympy divides by what both have in common, and may leave a negative power, which PyTorch raises an error for.
    """

    @functools.wraps(original)
    def is_ge(left, right):
        try:
            return original(left, right)
        except ValueRangeError:
            return False

    return staticmethod(is_ge)


def _with_parts_of_permutations(original):
    """x[torch.randperm(n)[:2]] as a pattern, as 2.14 has it: the example of 2.13 is shorter than its part, all of it.

    x[torch.randperm(n)] could not be compiled: it matches, but has not the size of a part, which is asked for then.
    """

    @functools.wraps(original)
    def register_replacement(search_fn, *args, **kwargs):
        if search_fn.__name__ == "randperm_index_pattern":
            kwargs["scalar_workaround"] = {"slice_shape": 2}
        return original(search_fn, *args, **kwargs)

    return register_replacement


def _copy_before(graph, where, node):
    with graph.inserting_before(where):
        copy = graph.call_function(aten.clone.default, (node,))
    with V.fake_mode:
        copy.meta["val"] = aten.clone.default(node.meta["val"])
    return copy


def _with_copies_of_what_is_written(original):
    """What a graph writes into one of its inputs may be another as it was: copied before that is written.

    Inductor drops clones of inputs, also those of t = x.clone(), x.copy_(y), y.copy_(t).
    """
    from torch._inductor.fx_utils import get_node_storage

    @functools.wraps(original)
    def remove_noop_ops(graph):
        original(graph)
        copies = graph.find_nodes(op="call_function", target=aten.copy_.default)
        order = {node: n for n, node in enumerate(graph.nodes)}
        first_writes: dict = {}
        for node in copies:
            target, source = node.args[:2]
            first = first_writes.get(get_node_storage(source)) if isinstance(source, torch.fx.Node) else None
            if first is not None and source.meta["val"].is_mps and order[source] < order[first]:
                node.replace_input_with(source, _copy_before(graph, first, source))
            first_writes.setdefault(get_node_storage(target), node)

    return remove_noop_ops


def _results(graph) -> list[int]:
    """Which outputs of a graph are results: not those of which AOTAutograd takes the geometry alone.

    Of views it makes the like of their inputs, or of intermediates, which follow the results, and offsets count then.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = context and context.fw_metadata
    visible = graph.output_node().meta.get("user_visible_output_idxs", ())  # others are kept for gradients
    if metadata is None or is_backward(graph):
        return list(visible)
    start, infos = metadata.num_mutated_inp_runtime_indices, metadata.output_info
    end = start + len(infos)
    regenerated = {n for n, info in enumerate(infos, start) if info.output_type.name.startswith(("alias_of", "is_in"))}
    return [*(n for n in visible if n not in regenerated), *range(end, end + metadata.num_intermediate_bases)]


def _with_results(original):
    """The key of a cached graph: x.add_(1), return x is in it what y = x + 1, x.copy_(y), return y is."""

    @functools.wraps(original)
    def __init__(self, gm, *args, **kwargs):
        original(self, gm, *args, **kwargs)
        self.results = _results(gm.graph)

    return __init__


def _with_results_of_their_own(original):
    """What a graph writes into an input and returns as well: returned as a copy, as the input may be computed in place.

    x[0] = 3, x.clone() was x itself.
    """
    from torch._inductor.fx_utils import get_node_storage

    @functools.wraps(original)
    def reinplace_inplaceable_ops(updater, graph):
        written = graph.find_nodes(op="call_function", target=aten.copy_.default)
        sources = (node.args[1] for node in written if node.args[0].op == "placeholder")
        storages = {get_node_storage(node) for node in sources if isinstance(node, torch.fx.Node)} - {None}
        output = graph.output_node()
        if storages and isinstance(output.args[0], (list, tuple)):  # of a branch it may be one alone
            results = list(output.args[0])
            for n in _results(graph):
                node = results[n]
                is_tensor = isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
                if is_tensor and node.meta["val"].is_mps and get_node_storage(node) in storages:
                    results[n] = _copy_before(graph, output, node)
            output.args = (tuple(results),)
        original(updater, graph)

    return reinplace_inplaceable_ops


def _of_its_dtype(original):
    """torch.bernoulli(x, p) has the dtype of x; PyTorch's decomposition gives truth values."""

    @functools.wraps(original)
    def bernoulli_p(x, *args, **kwargs):
        drawn = original(x, *args, **kwargs)
        return drawn.to(x.dtype) if x.is_mps else drawn

    return bernoulli_p


def register_corrections() -> None:
    from torch._decomp.decompositions_for_rng import extra_random_decomps
    from torch._inductor import codecache, graph, ir, lowering
    from torch._inductor.fx_passes import misc_patterns, post_grad
    from torch._inductor.fx_passes.post_grad import ConstructorMoverPass as Mover

    misc_patterns.register_replacement = _with_parts_of_permutations(misc_patterns.register_replacement)
    post_grad.remove_noop_ops = _with_copies_of_what_is_written(post_grad.remove_noop_ops)
    post_grad.reinplace_inplaceable_ops = _with_results_of_their_own(post_grad.reinplace_inplaceable_ops)
    details = codecache.FxGraphHashDetails
    details.__init__ = _with_results(details.__init__)
    _whole_numbers_of_bits()
    graph.GraphLowering.run_node = _read_by_kernels_of_mps(graph.GraphLowering.run_node)
    Mover.__call__ = _one_dtype_after_another(Mover.__call__)
    Mover.find_movable_constructors = _movable_to_mps(Mover.find_movable_constructors)
    Mover.cannot_be_moved = _not_movable_to_mps(Mover.cannot_be_moved)

    for op in (aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default):
        lowering.lowerings[op] = _sums_of_whole_windows(op, lowering.lowerings[op])
    op = aten.max_pool2d_with_indices_backward.default
    lowering.lowerings[op] = _of_one_image(lowering.lowerings[op])
    ir.Layout._stride_expr_ge_or_false = _known_or_false(ir.Layout._stride_expr_ge_or_false)
    lowering.fallback_pow_tensor_tensor = _with_dynamic_numbers(lowering.fallback_pow_tensor_tensor)
    lowering._pool_offsets_to_indices = _inside_the_input(lowering._pool_offsets_to_indices)
    op = aten.bernoulli.p
    extra_random_decomps[op] = _of_its_dtype(extra_random_decomps[op])
    op = aten.fractional_max_pool3d.default
    lowering.lowerings[op] = _called(op, lowering.lowerings[op])
    # PyTorch's own is at the key Autograd of every device, which that of mps comes before.
    op = aten.multilabel_margin_loss_forward.default
    op.py_impl(torch._C.DispatchKey.AutogradMPS)(multilabel_margin_loss_forward)
