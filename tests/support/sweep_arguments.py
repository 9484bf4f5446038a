"""Arguments of PyTorch's samples in the forms that the checks of sweep_checks.py need."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from op_db_support import Call
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree


class NothingToCheck(Exception):
    """The operator has no input or output that a check is about."""


def is_differentiable(value) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def random_like(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Normal numbers, the same on every device and, but for rounding, in every type."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.complex64 if tensor.is_complex() else torch.float32
    return torch.randn(tensor.shape, generator=generator, dtype=kind).to(tensor.device, tensor.dtype)


def differentiable_tensors(result) -> tuple[torch.Tensor, ...]:
    """The outputs that may have a gradient. Raises NothingToCheck where there is none."""
    found = tuple(t for t in pytree.tree_leaves(result) if is_differentiable(t))
    if not found:
        raise NothingToCheck
    return found


def all_tensors(result) -> tuple[torch.Tensor, ...]:
    """All outputs that are tensors. Raises NothingToCheck where there is none."""
    found = tuple(t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
    if not found:
        raise NothingToCheck
    return found


def function_of(function: Callable, args: tuple, kwargs: dict, chosen: Callable) -> tuple[Callable, list[torch.Tensor]]:
    """A function of the chosen tensors among the arguments alone, and these tensors, detached.

    Raises NothingToCheck where none is chosen.
    """
    values, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and chosen(v)]
    if not places:
        raise NothingToCheck
    values = [v.detach() if isinstance(v, torch.Tensor) else v for v in values]

    def of_tensors(*tensors):
        given = list(values)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        args, kwargs = pytree.tree_unflatten(given, spec)
        return function(*args, **kwargs)

    return of_tensors, [values[place] for place in places]


def with_tensors(sample: SampleInput, change: Callable[[torch.Tensor], torch.Tensor]) -> SampleInput:
    """The sample with every tensor changed; as many of them as before need a gradient."""

    def changed(value):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        return change(value.detach()).clone().requires_grad_(value.requires_grad)

    given = pytree.tree_map(changed, (sample.input, sample.args, sample.kwargs))
    return SampleInput(given[0], args=given[1], kwargs=given[2], output_process_fn_grad=sample.output_process_fn_grad)


def sizes_of(sample: SampleInput) -> list[int]:
    """The sizes that dimensions of the sample's tensors have, without repeats."""
    tensors = [t for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
    return list(dict.fromkeys(size for t in tensors if t.layout == torch.strided for size in t.shape))


def resized(sample: SampleInput, size: int, double: bool) -> SampleInput:
    """The sample with every dimension of a size emptied, or twice as long.

    What is there follows once more, each element smaller: equal ones might change places, equal rows be no pivots.
    """

    def change(tensor: torch.Tensor) -> torch.Tensor:
        for dim in (d for d, s in enumerate(tensor.shape) if s == size):
            smaller = 0.1 + 0.8 * random_like(tensor, dim).abs().sigmoid() if is_differentiable(tensor) else 1
            tensor = (
                torch.cat((tensor, (tensor * smaller).to(tensor.dtype)), dim) if double else tensor.narrow(dim, 0, 0)
            )
        return tensor

    return with_tensors(sample, change)


def first_input_emptied(sample: SampleInput, dim: int) -> SampleInput:
    """The sample with one dimension of its first tensor emptied, and all others as they are."""
    first = next(t for t in pytree.tree_leaves((sample.input, sample.args)) if isinstance(t, torch.Tensor))
    return with_tensors_by_identity(sample, first, lambda t: t.narrow(dim, 0, 0))


def with_tensors_by_identity(sample: SampleInput, only: torch.Tensor, change: Callable) -> SampleInput:
    changed = change(only.detach()).clone().requires_grad_(only.requires_grad)
    given = pytree.tree_map(lambda v: changed if v is only else v, (sample.input, sample.args, sample.kwargs))
    return SampleInput(given[0], args=given[1], kwargs=given[2], output_process_fn_grad=sample.output_process_fn_grad)


def emptied(sample: SampleInput) -> Iterator[SampleInput]:
    """Forms of the sample with zero-sized dimensions: one of the first tensor, all of one size, one of all tensors of
    a rank (a batch beside equal sizes), all of all tensors."""
    tensors = [t for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
    if not tensors or any(t.layout != torch.strided for t in tensors):
        return
    if len(tensors) > 1:
        for dim, size in enumerate(tensors[0].shape):
            if size:
                yield first_input_emptied(sample, dim)
    elif len(set(tensors[0].shape)) < tensors[0].dim():
        for dim in range(tensors[0].dim()):
            yield first_input_emptied(sample, dim)
    for size in sizes_of(sample):
        if size:
            yield resized(sample, size, double=False)
    for rank in dict.fromkeys(t.dim() for t in tensors) if len(tensors) > 1 else ():
        for dim in range(rank):
            yield with_tensors(sample, lambda t, r=rank, d=dim: t.narrow(d, 0, 0) if t.dim() == r else t)
    if len(sizes_of(sample)) > 1:
        yield with_tensors(sample, lambda t: t.new_empty((0,) * t.dim()))


def of_the_same_rank(op, sample: SampleInput) -> SampleInput:
    """A sample with tensors of the same ranks and other sizes that the CPU accepts; the sample itself where none is."""
    for size in sizes_of(sample):
        if size < 2:
            continue
        other = resized(sample, size, double=True)
        try:
            Call.of(op, other, torch.device("cpu")).run(op, other)
        except Exception:  # noqa: BLE001 - sizes that stand in other arguments, too
            continue
        return other
    return sample
