"""What test_sweep.py asks of every operator beyond its values: the checks, each a function of the operator and
its arguments that gives tensors. What it gives on mps must be what it gives on the CPU.
"""

from __future__ import annotations

import functools
from collections import Counter

import torch
from sweep_arguments import (
    NothingToCheck,
    all_tensors,
    differentiable_tensors,
    function_of,
    is_differentiable,
    random_like,
)
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing


def _leaves(op, args, kwargs, outputs):
    """A function of the differentiable tensors that gives a tuple of outputs, and these tensors."""
    function, inputs = function_of(op, args, kwargs, is_differentiable)
    return lambda *tensors: outputs(function(*tensors)), inputs


def _batch(tensor: torch.Tensor) -> torch.Tensor:
    """Two of a kind: the second in the domain of most operators, positive definite if the first is."""
    return torch.stack((tensor, 0.9 * tensor if is_differentiable(tensor) else tensor))


def forward(op, *args, **kwargs):
    return op(*args, **kwargs)


def gradients(op, *args, **kwargs):
    function, inputs = _leaves(op, args, kwargs, differentiable_tensors)
    inputs = [t.requires_grad_() for t in inputs]
    return _or_zeros(_gradients(function, inputs)[2], inputs)


def vjp(op, *args, **kwargs):
    function, inputs = _leaves(op, args, kwargs, differentiable_tensors)
    outputs, pull = torch.func.vjp(function, *inputs)
    return outputs, pull(tuple(random_like(t, 1) for t in outputs))


def jvp(op, *args, **kwargs):
    function, inputs = _leaves(op, args, kwargs, differentiable_tensors)
    return torch.func.jvp(function, tuple(inputs), tuple(random_like(t, 1) for t in inputs))


def vmap(op, *args, **kwargs):
    function, inputs = function_of(op, args, kwargs, lambda t: True)
    mapped = torch.func.vmap(lambda *tensors: all_tensors(function(*tensors)), randomness="different")
    return mapped(*map(_batch, inputs))


def vmap_of_first(op, *args, **kwargs):
    """Only the first tensor has a batch."""
    function, inputs = function_of(op, args, kwargs, lambda t: True)
    if len(inputs) == 1:
        raise NothingToCheck  # as vmap has it
    dims = (0,) + (None,) * (len(inputs) - 1)
    mapped = torch.func.vmap(lambda *tensors: all_tensors(function(*tensors)), dims, randomness="different")
    return mapped(_batch(inputs[0]), *inputs[1:])


def vmap_of_vjp(op, *args, **kwargs):
    function, inputs = _leaves(op, args, kwargs, differentiable_tensors)
    cotangents = tuple(random_like(t, 1) for t in function(*inputs))

    def pulled(inputs, cotangents):
        return torch.func.vjp(function, *inputs)[1](cotangents)

    batches = tuple(map(_batch, inputs)), tuple(map(_batch, cotangents))
    return torch.func.vmap(pulled, randomness="different")(*batches)


def _gradients(function, inputs, create_graph=False):
    """Outputs, cotangents, and gradients of the inputs; None where there is none."""
    outputs = [t for t in function(*inputs) if t.requires_grad]
    if not outputs:
        raise NothingToCheck
    cotangents = [random_like(t, 1).requires_grad_(create_graph) for t in outputs]
    found = torch.autograd.grad(outputs, inputs, cotangents, create_graph=create_graph, allow_unused=True)
    return outputs, cotangents, found


def _or_zeros(gradients, inputs):
    return [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]


def double_backward(op, *args, **kwargs):
    function, inputs = _leaves(op, args, kwargs, differentiable_tensors)
    inputs = [t.requires_grad_() for t in inputs]
    _, cotangents, first = _gradients(function, inputs, create_graph=True)
    chosen = [g for g in first if g is not None and g.requires_grad]
    if not chosen:
        raise NothingToCheck
    given = [random_like(g, 2) for g in chosen]
    second = torch.autograd.grad(chosen, [*inputs, *cotangents], given, allow_unused=True)
    return _or_zeros(second, [*inputs, *cotangents])


def forward_mode(op, *args, **kwargs):
    function, inputs = _leaves(op, args, kwargs, differentiable_tensors)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, random_like(t, 1)) for t in inputs]
        results = [forward_ad.unpack_dual(t) for t in function(*duals)]
        primals = [r.primal for r in results]
        return primals, _or_zeros([r.tangent for r in results], primals)


def _traced(function, inputs, others):
    """The function traced with symbolic shapes, run on what it was traced with; and on tensors of the same ranks.

    The latter is None where the guards of the trace keep them out.
    """
    graph = make_fx(function, tracing_mode="symbolic")(*inputs)
    placeholders = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    fits = graph.shape_env.evaluate_guards_for_args(placeholders, others)
    return graph(*inputs), graph(*others) if fits else None


def trace(op, *args, others, **kwargs):
    """others: a sample's tensors of the same ranks as those among the arguments."""
    function, inputs = function_of(op, args, kwargs, lambda t: True)
    return _traced(lambda *tensors: all_tensors(function(*tensors)), inputs, [t.detach() for t in others])


def trace_of_gradient(op, *args, others, **kwargs):
    """The gradient's operators are traced with the forward's, as AOTAutograd does."""
    function, inputs = function_of(op, args, kwargs, lambda t: True)

    def joint(*tensors):
        tensors = [t.detach().requires_grad_(is_differentiable(t)) for t in tensors]
        leaves = [t for t in tensors if t.requires_grad]
        with torch.enable_grad():
            outputs = [t for t in differentiable_tensors(function(*tensors)) if t.requires_grad]
            if not outputs or not leaves:
                raise NothingToCheck
            cotangents = [torch.ones_like(t) for t in outputs]
            gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
        return [t.detach() for t in outputs], [g for g in gradients if g is not None]

    return _traced(joint, inputs, [t.detach() for t in others])


class _Counting(TorchDispatchMode):
    """Counts the operators that reach a backend."""

    def __init__(self):
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class _Wrapper(torch.Tensor):
    """A tensor that hands every operator on to the one inside."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
            layout=inner.layout,
        )

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    def __repr__(self) -> str:
        return f"Wrapper({self.inner})"

    seen: Counter[str] = Counter()  # by name, of all of them

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen[str(func)] += 1
        # PyTorch resolves conjugate views before it comes here, and does not once more for what is inside.
        unwrap = functools.partial(pytree.tree_map_only, cls, lambda t: t.inner.resolve_conj().resolve_neg())
        result = func(*unwrap(args), **unwrap(kwargs or {}))
        wrapped = pytree.tree_map_only(torch.Tensor, cls, result)
        return return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


def _forward_and_gradients(function, inputs):
    """Outputs, and gradients where there are any."""
    inputs = [t.requires_grad_(is_differentiable(t)) for t in inputs]
    leaves = [t for t in inputs if t.requires_grad]
    outputs = all_tensors(function(*inputs))
    differentiable = [t for t in outputs if t.requires_grad]
    if not differentiable or not leaves:
        return outputs, ()
    cotangents = [torch.ones_like(t) for t in differentiable]
    gradients = torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True)
    return outputs, _or_zeros(gradients, leaves)


def dispatch_mode(op, *args, **kwargs):
    """Forward and gradients below a TorchDispatchMode; and the names that it saw."""
    function, inputs = function_of(op, args, kwargs, lambda t: True)
    with _Counting() as mode:
        results = _forward_and_gradients(function, inputs)
    return results, mode.seen


def subclass(op, *args, **kwargs):
    """Forward and gradients of tensors of a subclass; and the names that it saw."""
    function, inputs = function_of(op, args, kwargs, lambda t: True)
    _Wrapper.seen = Counter()
    results = _forward_and_gradients(function, [_Wrapper(t) for t in inputs])
    return pytree.tree_map_only(_Wrapper, lambda t: t.inner, results), _Wrapper.seen
