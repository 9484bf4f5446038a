"""Masks of attention that no input decides: causal ones become is_causal, those that hide nothing are left out.

Models that build their mask of positions (all of Hugging Face's, which leave it out in eager mode only) then multiply
half the tiles, and read no mask.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .graph_key import OfThisGenerator

aten, prims = torch.ops.aten, torch.ops.prims

FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
# Of each operator, the positions of its mask and of is_causal among the arguments.
ATTENTION = {FORWARD: (3, 5), BACKWARD: (4, 13)}
MAX_ELEMENTS = 1 << 26  # of a tensor that is computed while compiling

# Of positions and numbers, without a tensor in memory and without random numbers.
_PACKETS = (
    "add alias arange bitwise_and bitwise_not bitwise_or cat clone constant_pad_nd cumsum div eq expand fill full "
    "full_like ge gt index le logical_and logical_not logical_or lt masked_fill mul ne ones permute remainder reshape "
    "scalar_tensor select slice squeeze sub transpose tril triu unsqueeze view where zeros _to_copy"
)
KNOWN = {getattr(aten, name) for name in _PACKETS.split()} | {prims.iota, prims.convert_element_type}


class MaskPass(OfThisGenerator, CustomGraphPass):
    """Of graphs before they are parted into forward and backward."""

    def __call__(self, graph: fx.Graph) -> None:
        masks = _Masks()
        changed = False
        for op, (mask_at, causal_at) in ATTENTION.items():
            for node in graph.find_nodes(op="call_function", target=op):
                changed |= _simplify(node, masks, mask_at, causal_at)
        if changed:
            graph.eliminate_dead_code()


def _simplify(node: fx.Node, masks: _Masks, mask_at: int, causal_at: int) -> bool:
    """Whether an attention's mask was replaced."""
    args = list(node.args)
    mask = args[mask_at] if len(args) > mask_at else None
    if not isinstance(mask, fx.Node) or node.kwargs.keys() & {"attn_bias", "is_causal"}:
        return False
    is_causal = args[causal_at] if len(args) > causal_at else False
    wants_gradient = node.target is BACKWARD and args[5][3]
    kind = None if is_causal or wants_gradient else masks.kind(mask)
    if kind is None:
        return False
    args += [0.0, False][len(args) - 4 :]  # the defaults of dropout_p and is_causal, which the gradient has not
    args[mask_at], args[causal_at] = None, kind == "causal"
    node.args = tuple(args)
    return True


class _Masks:
    """What masks hide, each computed once, on the CPU."""

    def __init__(self):
        self._kinds: dict[fx.Node, str | None] = {}

    def kind(self, mask: fx.Node) -> str | None:
        """'causal', 'none' where nothing is hidden, None where that is not known or where it is another mask."""
        if mask not in self._kinds:
            with unset_fake_temporarily(), torch.no_grad():
                value = _value(mask)
                self._kinds[mask] = None if value is None else _kind(value)
        return self._kinds[mask]


def _kind(value: torch.Tensor) -> str | None:
    if value.dtype == torch.bool:
        visible = value
    elif value.is_floating_point():  # added to scores
        visible = value == 0
        if not (visible | (value <= torch.finfo(value.dtype).min)).all():
            return None
    else:
        return None
    if visible.all():
        return "none"
    causal = torch.ones(visible.shape[-2:], dtype=torch.bool).tril()
    return "causal" if (visible == causal).all() else None


def _value(mask: fx.Node) -> torch.Tensor | None:
    """What a node computes where it depends on nothing but numbers of the graph."""
    if (order := _ancestors(mask)) is None:
        return None
    values: dict[fx.Node, object] = {}
    for node in order:
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        values[node] = node.target(*args, **kwargs)
    return values[mask]


def _ancestors(mask: fx.Node) -> list[fx.Node] | None:
    """A node and what it is computed from, that first; None where that is more than known operators of known sizes."""
    order: dict[fx.Node, None] = {}
    stack = [(mask, False)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.setdefault(node)
        elif node not in order:
            if not _is_known(node):
                return None
            stack.append((node, True))
            stack.extend((source, False) for source in node.all_input_nodes)
    return list(order)


def _is_known(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    is_small = isinstance(count := value.numel(), int) and count <= MAX_ELEMENTS
    return is_small and getattr(node.target, "overloadpacket", None) in KNOWN
