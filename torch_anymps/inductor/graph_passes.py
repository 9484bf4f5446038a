"""Rewrites of graphs before Inductor lowers them: what its own passes leave to dispatches and copies of mps."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphModulePass

from . import runtime
from .attention_passes import join_gradients
from .device import device_config
from .epilogue_steps import is_conversion
from .epilogues import add_epilogues
from .graph_key import OfThisGenerator
from .norm_prologue import add_norm_prologues, rows_to_store
from .product_passes import is_for_called, is_mps, widen_products

# Bytes that one conversion of many tensors may make: they are all alive from the first of them on.
MAX_CONVERTED_BYTES = 64 << 20


class GraphPasses(OfThisGenerator, CustomGraphModulePass):
    def __call__(self, gm: fx.GraphModule) -> None:
        runtime.prepare()
        if not inductor_config.emulate_precision_casts:  # the others keep results in float32 on the way
            # Elements of cooperative matrices are reached one by one: on an H200 gelu and its gradient cost BERT's
            # products 2.5 ms a step, and the kernels that they spare take 0.7.
            device = device_config()
            stored = () if device.software else rows_to_store(gm.graph)
            add_epilogues(gm.graph, few_rows_only=device.matrix_units, stored=stored)
            widen_products(gm.graph)
            if not device.software:  # whose dispatches cost nothing beside what they compute
                add_norm_prologues(gm.graph)
        convert_together(gm.graph)
        join_gradients(gm.graph)
        gm.graph.eliminate_dead_code()
        gm.recompile()


def convert_together(graph: fx.Graph) -> None:
    """Conversions of inputs for operators that are called (weights under autocast): one launch for many."""
    groups: dict[torch.dtype, list[list[fx.Node]]] = {}
    room: dict[torch.dtype, int] = {}
    for node in graph.nodes:
        if not is_conversion(node) or node.args[0].op != "placeholder" or not is_mps(node):
            continue
        result, source = node.meta["val"], node.args[0].meta["val"]
        are_floats = source.is_floating_point() and result.is_floating_point() and isinstance(result.numel(), int)
        if not are_floats or not source.is_contiguous() or not is_for_called(node):
            continue
        dtype = result.dtype
        room[dtype] = room.get(dtype, 0) - result.nbytes
        if room[dtype] < 0:
            groups.setdefault(dtype, []).append([])
            room[dtype] = MAX_CONVERTED_BYTES - result.nbytes
        groups[dtype][-1].append(node)
    for dtype, lists in groups.items():
        for nodes in lists:
            if len(nodes) > 1:
                _convert_list(graph, nodes, dtype)


def _convert_list(graph: fx.Graph, nodes: list[fx.Node], dtype: torch.dtype) -> None:
    with graph.inserting_before(nodes[0]):
        together = graph.call_function(torch.ops.anymps.convert_all.default, ([n.args[0] for n in nodes], dtype))
        together.meta["val"] = [n.meta["val"] for n in nodes]
        parts = [graph.call_function(operator.getitem, (together, i)) for i in range(len(nodes))]
    for node, part in zip(nodes, parts, strict=True):
        part.meta.update(node.meta)
        node.replace_all_uses_with(part)
