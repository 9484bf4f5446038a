"""Products in graphs: what is called, and products of 16 bits whose results are wanted as float32."""

from __future__ import annotations

import torch
from torch import fx

from .epilogue_steps import RESHAPES, is_conversion

aten, anymps = torch.ops.aten, torch.ops.anymps

# Operators that are called: nothing fuses into them.
CALLED = {
    aten.mm.default,
    aten.mm.dtype,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    anymps.addmm_epilogue.default,
    anymps.addmm_epilogue_and_first.default,
    anymps.addmm_norm.default,
    anymps.convolution_epilogue.default,
}
VIEWS = {*RESHAPES, aten.permute.default, aten.t.default, aten.unsqueeze.default}


def is_mps(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "mps"


def is_for_called(node: fx.Node, test=all) -> bool:
    """Whether all, or any, that read a node or a view of it are operators that are called, or results of the graph."""
    return test(
        user.op == "output" or user.target in CALLED or (user.target in VIEWS and is_for_called(user, test))
        for user in node.users
    )


def is_backward(graph: fx.Graph) -> bool:
    return any("tangents" in node.name for node in graph.find_nodes(op="placeholder"))


def widen_products(graph: fx.Graph) -> None:
    """Products of 16-bit floats that only the results of a backward need, as float32: written so, not converted.

    Gradients of weights under autocast. They are not rounded to 16 bits on the way.
    """
    if not is_backward(graph):
        return  # what a program converts by itself has been rounded
    for node in list(graph.nodes):
        if not is_conversion(node, torch.float32) or any(user.op != "output" for user in node.users):
            continue
        product = node.args[0]
        if product.target is not aten.mm.default or len(product.users) > 1 or not is_mps(product):
            continue
        if product.meta["val"].dtype not in (torch.float16, torch.bfloat16):
            continue
        with graph.inserting_before(product):
            wide = graph.call_function(aten.mm.dtype, (*product.args, torch.float32))
        wide.meta.update(node.meta)
        node.replace_all_uses_with(wide)
