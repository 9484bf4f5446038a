"""Gradients of attention whose query, key and value are parts of one tensor: written into one, not copied there."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .epilogue_steps import RESHAPES
from .mask_passes import BACKWARD
from .product_passes import is_mps

aten = torch.ops.aten


def join_gradients(graph: fx.Graph) -> None:
    """Concatenations of the three gradients, [batch, rows, heads of all], as a projection to all three has them.

    What autograd makes of `projection(x).split(size, -1)` and of `projection(x).view(batch, rows, 3, heads, size)
    .permute(2, 0, 3, 1, 4).unbind()`.
    """
    for node in list(graph.find_nodes(op="call_function", target=aten.cat.default)):
        if len(node.args[0]) != 3 or not is_mps(node):
            continue
        if (gradients := _side_by_side(node)) is not None:
            replaced = node
        elif (replaced := _unstacked(node)) is not None:
            gradients = list(node.args[0])
        if replaced is None or (attention := _attention_of(gradients)) is None:
            continue
        with graph.inserting_before(node):
            joined = _joined(graph, attention)
            shape = list(replaced.meta["val"].shape)
            if len(shape) == 2:
                shape = [-1, shape[1]]
            if len(shape) != 3:
                joined = graph.call_function(aten.reshape.default, (joined, shape))
                joined.meta.update(replaced.meta)
        replaced.replace_all_uses_with(joined)


def _joined(graph: fx.Graph, attention: fx.Node) -> fx.Node:
    grad_out, query, key, value, bias, _, out, lse, *_, dropout, is_causal, seed, offset = attention.args
    batch, heads, rows, size = query.meta["val"].shape
    columns = (heads + 2 * key.meta["val"].shape[1]) * size
    arguments = (grad_out, query, key, value, bias, out, lse, dropout, is_causal, seed, offset)
    joined = graph.call_function(torch.ops.anymps.attention_backward_in_one.default, arguments, dict(attention.kwargs))
    joined.meta.update(attention.meta)
    joined.meta["val"] = query.meta["val"].new_empty((batch, rows, columns))
    return joined


def _attention_of(gradients: list[fx.Node]) -> fx.Node | None:
    """The attention of which nothing is read but these, its gradients of query, key and value in this order."""
    if any(g.target is not operator.getitem or len(g.users) != 1 for g in gradients):
        return None
    attention = gradients[0].args[0]
    if attention.target is not BACKWARD or [g.args for g in gradients] != [(attention, i) for i in range(3)]:
        return None
    query, key, value = (a.meta["val"].shape for a in attention.args[1:4])
    same = [(query[2], key[2]), (query[3], key[3]), *zip(key, value, strict=True)]
    is_whole = list(attention.args[5]) == [True, True, True, False] and len(attention.users) == 3
    return attention if is_whole and all(statically_known_true(a == b) for a, b in same) else None


def _side_by_side(cat: fx.Node) -> list[fx.Node] | None:
    """The tensors [batch, heads, rows, size] that a node concatenates as [batch, rows, heads * size] or flattened."""
    parts, dim = cat.args[0], cat.args[1] if len(cat.args) > 1 else 0
    dims = cat.meta["val"].dim()
    if dims not in (2, 3) or dim % dims != dims - 1:
        return None
    sources = []
    for part in parts:
        sizes = part.meta["val"].shape
        while part.target in RESHAPES and len(part.users) == 1:
            part = part.args[0]
        if part.target is not aten.permute.default or list(part.args[1]) != [0, 2, 1, 3] or len(part.users) != 1:
            return None
        batch, rows, heads, size = part.meta["val"].shape
        wanted = (batch, rows, heads * size) if dims == 3 else (sizes[0], heads * size)
        if not all(statically_known_true(a == b) for a, b in zip(sizes, wanted, strict=True)):
            return None
        sources.append(part.args[0])
    return sources


def _unstacked(cat: fx.Node) -> fx.Node | None:
    """What has [batch, rows, 3, heads, size] of three [batch, heads, rows, size], which a node concatenates."""
    dim = cat.args[1] if len(cat.args) > 1 else 0
    batch, *sizes = cat.args[0][0].meta["val"].shape
    node = cat
    for targets, args in (
        (RESHAPES, [3, batch, *sizes]),
        ({aten.permute.default}, [1, 3, 0, 2, 4]),
    ):
        user = next(iter(node.users), cat)
        if len(node.users) != 1 or user.target not in targets or list(user.args[1]) != args:
            return None
        node = user
    if dim != 0 or not all(isinstance(size, int) for size in (batch, *sizes)):
        return None
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is aten.clone.default else node
