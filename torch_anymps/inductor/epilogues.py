"""What follows products and convolutions in a graph, done as they store their results where that spares memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch._inductor.inductor_prims  # which registers the operators of prims that are named below
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .epilogue_steps import (
    CONVERT,
    RESHAPES,
    ChannelStep,
    Step,
    depends_on_called,
    is_conversion,
    next_channel_step,
    next_step,
    uses,
)
from .product_passes import CALLED, is_for_called, is_mps

aten, anymps = torch.ops.aten, torch.ops.anymps

MAX_STEPS = 4
FEW_ROWS = 4  # csrc/gemm/tile_table.h: kFewRows, of products that no matrix unit computes
# They read an element several times: Inductor lets them read memory.
POOLS = {
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
    torch.ops.prims._low_memory_max_pool_with_offsets.default,
}


def add_epilogues(graph: fx.Graph, few_rows_only: bool = False, stored: Collection[fx.Node] = ()) -> None:
    """Replaces products and convolutions by those that do the next steps, too, where that spares memory traffic.

    few_rows_only: nothing but products of at most FEW_ROWS rows. stored: what is worth storing, whoever reads it.
    Results that are in memory in any case, as operators that are called read them, are stored at once; what lies
    between is never stored. Other than without it, it is not rounded to 16 bits either.
    """
    branches: dict[fx.Node, Branch] = {}
    for node in graph.nodes:
        if not few_rows_only and (source := source_of(node)) is not None and source.is_convolution:
            value, channel_steps = _after_channel_steps(source)
            branches[value] = Branch(source, channel_steps)
    for node in list(graph.nodes):
        if node._erased or not node.users or (source := source_of(node)) is None:
            continue
        if few_rows_only and not source.has_few_rows:
            continue
        found = _longest(source, branches, stored)
        if found is not None:
            _replace(graph, source, found)


@dataclass(frozen=True)
class Source:
    """What results come from: self + mat1 @ mat2, or a convolution; `node` has them."""

    node: fx.Node
    summand: fx.Node | None = None
    factors: tuple[fx.Node, ...] = ()

    @property
    def is_convolution(self) -> bool:
        return not self.factors

    @property
    def has_few_rows(self) -> bool:
        return not self.is_convolution and statically_known_true(self.node.meta["val"].shape[0] <= FEW_ROWS)

    @property
    def dtype(self) -> torch.dtype:
        return self.node.meta["val"].dtype


def source_of(node: fx.Node) -> Source | None:
    """Products of two matrices without factors alpha and beta; convolutions that are not depthwise or transposed."""
    if node.op != "call_function" or node.kwargs or not is_mps(node) or not node.meta["val"].is_floating_point():
        return None
    if node.target is aten.mm.default:
        return Source(node, None, tuple(node.args))
    if node.target is aten.addmm.default:
        return _with_summand(node, node.args[0], tuple(node.args[1:]))
    if node.target is aten.add.Tensor:  # Inductor takes the bias out of what activations follow
        for product, summand in (node.args, node.args[::-1]):
            is_product = isinstance(product, fx.Node) and product.target is aten.mm.default
            if is_product and len(product.users) == 1 and not product.kwargs and _is_summand(node, product):
                return _with_summand(node, summand, tuple(product.args))
        return None
    if node.target is aten.convolution.default:
        image, weight, transposed = node.args[0], node.args[1], node.args[6]
        value = image.meta["val"]
        channels = weight.meta["val"].shape[1]
        depthwise = node.args[8] != 1 and not statically_known_true(channels > 1)
        return None if transposed or depthwise or value.dim() not in (4, 5) else Source(node)
    return None


def _is_summand(node: fx.Node, product: fx.Node) -> bool:
    """Whether a sum of a product, in its dtype, adds what broadcasts over its rows, or lies as it does."""
    summand = next((a for a in node.args if a is not product), None)
    if not isinstance(summand, fx.Node) or not isinstance(summand.meta.get("val"), torch.Tensor):
        return False
    shape, of = summand.meta["val"].shape, product.meta["val"].shape
    if node.meta["val"].dtype != product.meta["val"].dtype:
        return False
    if node.meta["val"].dim() != 2 or len(shape) not in (1, 2):
        return False
    return all(statically_known_true(a == b) for a, b in zip(shape, of[-len(shape) :]))


def _with_summand(node: fx.Node, summand: fx.Node, factors: tuple[fx.Node, ...]) -> Source | None:
    return Source(node, summand, factors) if summand.meta["val"].dtype == node.meta["val"].dtype else None


@dataclass(frozen=True)
class Branch:
    """A convolution and what of each channel follows it: where both are summed, one is stored and the other adds it."""

    source: Source
    channel_steps: list[ChannelStep]


@dataclass
class Found:
    channel_steps: list[ChannelStep]
    steps: list[Step]
    readers: list[fx.Node]  # that are to read the results, of the source's dtype
    keep: bool = False  # what the steps begin with is read by others, too
    branch: Branch | None = None  # which the operand comes from


def _after_channel_steps(source: Source) -> tuple[fx.Node, list[ChannelStep]]:
    value, steps = source.node, []
    while source.is_convolution and (step := next_channel_step(value, source.dtype, source.node)) is not None:
        steps.append(step)
        value = step.node
    return value, steps


def _longest(source: Source, branches: dict[fx.Node, Branch], stored: Collection[fx.Node]) -> Found | None:
    """The longest chain of steps whose result is in memory in any case."""
    dtype = source.dtype
    value, channel_steps = _after_channel_steps(source)
    steps: list[Step] = []
    branch = None
    found = functools.partial(_found, source, stored)
    best = found(value, channel_steps, steps) if channel_steps or _has_bias(source) else None
    keep, has_operand = False, False
    while len(steps) < MAX_STEPS and (step := next_step(value, dtype, source.node)) is not None:
        others = set(uses(value, dtype)) - step.consumed
        if others and (steps or source.is_convolution):
            break
        keep = keep or bool(others)
        if step.operand is not None:
            if has_operand:
                break
            has_operand = True
            if not (_is_of_shape(step.operand, source.node) or _sizes(source.node)):
                break
            if not _is_operand(step, source, keep):
                branch = _open_branch(branches, step.operand, dtype)
                if branch is None:
                    break
        steps.append(step)
        value = step.node
        best = found(value, channel_steps, steps, keep, branch) or best
    return best


def _open_branch(branches: dict[fx.Node, Branch], operand: fx.Node, dtype: torch.dtype) -> Branch | None:
    """The convolution that an operand comes from, where it can still be done before it is wanted."""
    branch = branches.get(operand)
    return branch if branch and not branch.source.node._erased and _readers(operand, dtype) else None


def _has_bias(source: Source) -> bool:
    """A bias of a convolution, which Inductor would add in a kernel of its own."""
    return source.is_convolution and source.node.args[2] is not None


def _found(source, stored, value, channel_steps, steps, keep=False, branch=None) -> Found | None:
    readers = _readers(value, source.dtype)
    if not readers or not all(_sizes(reader) for reader in readers):
        return None
    worth = all(map(is_for_called, readers)) if keep else value in stored or any(map(_in_memory, readers))
    return Found(channel_steps, list(steps), readers, keep, branch) if worth else None


def _readers(node: fx.Node, dtype: torch.dtype) -> list[fx.Node]:
    """What reads a node as that dtype; where it is of another one, its conversions, or [] where one reads it as it is.

    Reshaped nodes between do not count.
    """
    if node.meta["val"].dtype == dtype:
        return [node]
    found = []
    for user in node.users:
        if is_conversion(user, dtype):
            found.append(user)
        elif user.target in RESHAPES and (inner := _readers(user, dtype)):
            found += inner
        else:
            return []
    return found


def _in_memory(node: fx.Node) -> bool:
    """Whether a node is, or has to be, in memory, whatever is fused."""
    while node.target in RESHAPES or node.target is operator.getitem:
        node = node.args[0]
    if node.op != "call_function" or node.target in CALLED:
        return True
    if is_for_called(node, any) or any(user.target in POOLS for user in node.users):
        return True
    return depends_on_called(node, _is_called)


def _is_called(node: fx.Node) -> bool:
    return node.target in CALLED


def _is_operand(step: Step, source: Source, keep: bool) -> bool:
    """Whether an operand is in memory as it is, and at the place where it is wanted."""
    operand = step.operand
    value = operand.meta["val"]
    if value.dtype != source.dtype or not is_mps(operand) or not _in_memory(operand):
        return False
    if not source.is_convolution and not value.is_contiguous():
        return False  # to be a matrix it would be copied
    # What is kept is read by others, perhaps before the operand is there.
    return not keep or operand < source.node


def _is_of_shape(node: fx.Node, like: fx.Node) -> bool:
    sizes, wanted = (n.meta["val"].shape for n in (node, like))
    return len(sizes) == len(wanted) and all(statically_known_true(a == b) for a, b in zip(sizes, wanted))


def _sizes(node: fx.Node) -> list[int]:
    """The sizes of a node for a reshape, of which one may be dynamic; [] where more are."""
    sizes = [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]
    return sizes if sizes.count(-1) <= 1 else []


def _new(graph: fx.Graph, like: fx.Node, target, *args, **kwargs) -> fx.Node:
    made = graph.call_function(target, args, kwargs)
    made.meta.update(like.meta)
    return made


def _replace(graph: fx.Graph, source: Source, found: Found) -> fx.Node:
    """The results in the place of what reads them; the rest is gone then. Returns them."""
    node = source.node
    if found.branch is not None:
        (step,) = (step for step in found.steps if step.operand is not None)
        readers = _readers(step.operand, source.dtype)
        step.operand = _replace(graph, found.branch.source, Found(found.branch.channel_steps, [], readers))
    last = [node, *(step.node for step in [*found.channel_steps, *found.steps])][-1]
    with graph.inserting_before(node if found.keep else last):
        result = _call(graph, source, found)
    for reader in found.readers:
        shaped = result
        if reader is not node and reader.meta["val"].dim() != node.meta["val"].dim():
            with graph.inserting_before(reader):
                shaped = _new(graph, reader, aten.reshape.default, result, _sizes(reader))
        reader.replace_all_uses_with(shaped)
        _erase_dead(graph, reader)
    return result


def _call(graph: fx.Graph, source: Source, found: Found) -> fx.Node:
    """The call that does all steps. What is kept of a product takes the place of the product."""
    node = source.node
    names = " ".join(step.name for step in found.steps)
    operand = next((step.operand for step in found.steps if step.operand is not None), None)
    if operand is not None and not _is_of_shape(operand, node):
        shaped = graph.call_function(aten.reshape.default, (operand, _sizes(node)))
        shaped.meta["val"] = operand.meta["val"].reshape(node.meta["val"].shape)
        operand = shaped
    if source.is_convolution:
        scale, shift = _scale_and_shift(graph, node, found.channel_steps)
        image, weight, bias, stride, padding, dilation, _, _, groups = node.args
        arguments = (image, weight, bias, stride, padding, dilation, groups, scale, shift, names, operand)
        return _new(graph, node, anymps.convolution_epilogue.default, *arguments)
    arguments = (source.summand, *source.factors, names, operand)
    if not found.keep:
        return _new(graph, node, anymps.addmm_epilogue.default, *arguments)
    both = graph.call_function(anymps.addmm_epilogue_and_first.default, arguments)
    both.meta["val"] = (node.meta["val"], node.meta["val"])
    result = _new(graph, node, operator.getitem, both, 0)
    node.replace_all_uses_with(_new(graph, node, operator.getitem, both, 1))
    return result


def _erase_dead(graph: fx.Graph, node: fx.Node) -> None:
    """A node without readers, and what only it has read: their readers are counted."""
    if node.users or node.op != "call_function" or node._erased:
        return
    inputs = list(node.all_input_nodes)
    graph.erase_node(node)
    for source in inputs:
        _erase_dead(graph, source)


def _scale_and_shift(graph: fx.Graph, convolution: fx.Node, steps: list[ChannelStep]):
    """Of each channel, in float32, what steps with numbers of channels come to; None both where there are none."""
    if not steps:
        return None, None
    channels = convolution.meta["val"].shape[1]

    def new(target, *args):
        made = graph.call_function(target, args)
        made.meta["val"] = convolution.meta["val"].new_empty([channels], dtype=torch.float32)
        return made

    scale = shift = None
    for step in steps:
        number = step.number
        if number.meta["val"].dtype != torch.float32:
            with_dtype = graph.call_function(CONVERT, (number, torch.float32))
            with_dtype.meta["val"] = number.meta["val"].to(torch.float32)
            number = with_dtype
        number = new(aten.reshape.default, number, [channels if isinstance(channels, int) else -1])
        if step.target is aten.mul.Tensor:
            scale = number if scale is None else new(aten.mul.Tensor, scale, number)
            shift = None if shift is None else new(aten.mul.Tensor, shift, number)
        else:
            number = new(aten.neg.default, number) if step.target is aten.sub.Tensor else number
            shift = number if shift is None else new(aten.add.Tensor, shift, number)
    whole = {"dtype": torch.float32, "device": convolution.meta["val"].device}
    if scale is None:
        scale = graph.call_function(aten.full.default, ([channels], 1.0), whole)
        scale.meta["val"] = shift.meta["val"]
    if shift is None:
        shift = graph.call_function(aten.full.default, ([channels], 0.0), whole)
        shift.meta["val"] = scale.meta["val"]
    return scale, shift
