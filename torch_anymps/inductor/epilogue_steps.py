"""Element-wise operators that a product or a convolution does as it stores its results: csrc/gemm/epilogue.h."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

CONVERT = torch.ops.prims.convert_element_type.default
RESHAPES = {aten.view.default, aten.reshape.default}
FUNCTIONS = {
    aten.relu.default: "relu",
    aten.sigmoid.default: "sigmoid",
    aten.tanh.default: "tanh",
}


@dataclass
class Step:
    """The next step of what a node begins: `name` to the operator, `node` has its value."""

    name: str
    node: fx.Node
    operand: fx.Node | None = None
    consumed: set[fx.Node] = field(default_factory=set)  # users of what it begins with that are parts of it


def is_conversion(node, dtype: torch.dtype | None = None) -> bool:
    if not isinstance(node, fx.Node) or node.target is not CONVERT:
        return False
    return isinstance(node.args[0], fx.Node) and dtype in (None, node.args[1])


def stripped(node, dtype: torch.dtype):
    """What a node is but for its shape, and for conversions from that dtype to float32 or back."""
    while isinstance(node, fx.Node) and (
        node.target in RESHAPES or is_conversion(node, torch.float32) or is_conversion(node, dtype)
    ):
        node = node.args[0]
    return node


def uses(node: fx.Node, dtype: torch.dtype) -> list[fx.Node]:
    """What reads a node, reshaped or converted or as it is."""
    found = []
    for user in node.users:
        is_alias = user.target in RESHAPES or is_conversion(user, torch.float32) or is_conversion(user, dtype)
        found += uses(user, dtype) if is_alias else [user]
    return found


def numel_of(node: fx.Node):
    return node.meta["val"].numel()


def is_of_size(node, like: fx.Node) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and statically_known_true(value.numel() == like.meta["val"].numel())


def next_step(value: fx.Node, dtype: torch.dtype, product: fx.Node) -> Step | None:
    """What is done with a value, if csrc/gemm/epilogue.h has it; operand and result are of `product`'s sizes."""
    readers = uses(value, dtype)
    for reader in readers:
        step = _function(reader) or _silu(reader, value, dtype) or _with_operand(reader, value, dtype)
        if step is None or (step.operand is not None and not is_of_size(step.operand, product)):
            continue
        step.consumed |= {reader}
        if is_of_size(step.node, product):
            return step
    return None


def _function(reader: fx.Node) -> Step | None:
    if reader.target is aten.gelu.default:
        return Step("gelu_tanh" if reader.kwargs.get("approximate") == "tanh" else "gelu", reader)
    name = FUNCTIONS.get(reader.target)
    return Step(name, reader) if name else None


def _is_call(node, target, count: int) -> bool:
    return isinstance(node, fx.Node) and node.target is target and not node.kwargs and len(node.args) == count


def silu_of(node) -> fx.Node | None:
    """x, where a node is x / (1 + exp(-x)), which is what Inductor makes of silu."""
    if not _is_call(node, aten.div.Tensor, 2):
        return None
    x, divisor = node.args
    if not _is_call(divisor, aten.add.Tensor, 2) or divisor.args[1] != 1:
        return None
    exp = divisor.args[0]
    if not _is_call(exp, aten.exp.default, 1) or not _is_call(exp.args[0], aten.neg.default, 1):
        return None
    return x if exp.args[0].args[0] is x and isinstance(x, fx.Node) else None


def _silu(reader: fx.Node, value: fx.Node, dtype: torch.dtype) -> Step | None:
    x = silu_of(reader)
    if x is None or stripped(x, dtype) is not stripped(value, dtype):
        return None
    inner = reader.args[1].args[0].args[0]
    if any(len(node.users) > 1 for node in (reader.args[1], reader.args[1].args[0], inner)):
        return None
    return Step("silu", reader, consumed={inner})


def _with_operand(reader: fx.Node, value: fx.Node, dtype: torch.dtype) -> Step | None:
    if reader.target is aten.gelu_backward.default:
        grad, x = reader.args[:2]
        name = "gelu_tanh" if reader.kwargs.get("approximate") == "tanh" else "gelu"
        same = stripped(grad, dtype) is stripped(value, dtype)
        return Step(name + "_backward", reader, stripped(x, dtype)) if same else None
    if reader.target is aten.where.self:
        return _relu_backward(reader, value, dtype)
    if not _is_call(reader, aten.add.Tensor, 2) and not _is_call(reader, aten.mul.Tensor, 2):
        return None
    of_value = [stripped(a, dtype) is stripped(value, dtype) for a in reader.args]
    if of_value.count(True) != 1:
        return None
    other = reader.args[of_value.index(False)]
    if not isinstance(other, fx.Node):
        return None
    if reader.target is aten.add.Tensor:
        return Step("add", reader, stripped(other, dtype))
    return _multiplied(reader, other, dtype)


def _relu_backward(reader: fx.Node, value: fx.Node, dtype: torch.dtype) -> Step | None:
    """where(x <= 0, 0, value)"""
    condition, zero, grad = reader.args
    if not _is_call(condition, aten.le.Scalar, 2) or condition.args[1] != 0:
        return None
    if not isinstance(zero, fx.Node) or zero.target is not aten.full.default or zero.args[1] != 0:
        return None
    if stripped(grad, dtype) is not stripped(value, dtype):
        return None
    return Step("relu_backward", reader, stripped(condition.args[0], dtype))


def _multiplied(reader: fx.Node, other: fx.Node, dtype: torch.dtype) -> Step:
    """The factor itself, or what it is a function of, which may be in memory where the factor is not."""
    factor = stripped(other, dtype)
    x = silu_of(factor)
    if x is not None:
        return Step("silu_mul", reader, stripped(x, dtype))
    if factor.target is aten.gelu.default:
        name = "gelu_tanh_mul" if factor.kwargs.get("approximate") == "tanh" else "gelu_mul"
        return Step(name, reader, stripped(factor.args[0], dtype))
    if factor.target in FUNCTIONS:
        return Step(FUNCTIONS[factor.target] + "_mul", reader, stripped(factor.args[0], dtype))
    # y (1 - y) of sigmoid, 1 - y y of tanh
    if _is_call(factor, aten.mul.Tensor, 2):
        for y, rest in (factor.args, factor.args[::-1]):
            if _is_call(rest, aten.sub.Tensor, 2) and rest.args[0] == 1 and rest.args[1] is y:
                return Step("sigmoid_backward", reader, stripped(y, dtype))
    if _is_call(factor, aten.sub.Tensor, 2) and factor.args[0] == 1:
        square = factor.args[1]
        if _is_call(square, aten.mul.Tensor, 2) and square.args[0] is square.args[1]:
            return Step("tanh_backward", reader, stripped(square.args[0], dtype))
    return Step("mul", reader, factor)


@dataclass
class ChannelStep:
    """value (+, -, *) a number of each channel."""

    target: object
    node: fx.Node
    number: fx.Node


def next_channel_step(value: fx.Node, dtype: torch.dtype, convolution: fx.Node) -> ChannelStep | None:
    """What follows a convolution with a number of each channel, as batch norm does whose statistics are known."""
    readers = uses(value, dtype)
    if len(readers) != 1:
        return None
    reader = readers[0]
    if not any(_is_call(reader, op, 2) for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)):
        return None
    first, second = reader.args
    if stripped(first, dtype) is not stripped(value, dtype):
        if reader.target is aten.sub.Tensor or stripped(second, dtype) is not stripped(value, dtype):
            return None
        first, second = second, first
    if not isinstance(second, fx.Node) or not is_of_size(reader, convolution):
        return None
    if not isinstance(second.meta.get("val"), torch.Tensor):  # a size
        return None
    shape, of = second.meta["val"].shape, convolution.meta["val"].shape
    ones = [size for size in shape[-(len(of) - 2) :] if not statically_known_true(size == 1)]
    leading = shape[: -(len(of) - 2)]
    is_of_channels = len(shape) >= len(of) - 1 and not ones and statically_known_true(leading[-1] == of[1])
    if not is_of_channels or (len(leading) == 2 and not statically_known_true(leading[0] == 1)):
        return None
    return ChannelStep(reader.target, reader, second)


def depends_on_called(value: fx.Node, called) -> bool:
    """Whether what reads a value depends on a call that depends on the value: then it cannot be one kernel with it."""
    behind: dict[fx.Node, bool] = {value: False}  # nodes that depend on the value; through a call
    node = value.next
    while node.op != "root":
        inputs = [behind[i] for i in node.all_input_nodes if i in behind]
        if inputs:
            behind[node] = any(inputs) or called(node)
        node = node.next
    return any(
        any(behind.get(i, False) for i in user.all_input_nodes)
        for user in value.users
        if user.op == "call_function" and user.target is not operator.getitem
    )
