"""gelu as models write it out, by its formula with tanh: made the operator, before there are gradients of its parts."""

from __future__ import annotations

import math
import operator

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from .graph_key import OfThisGenerator

OPERATORS = {
    "mul": (operator.mul, torch.mul, "mul"),
    "add": (operator.add, torch.add, "add"),
    "pow": (operator.pow, torch.pow, "pow"),
    "tanh": (torch.tanh, torch.nn.functional.tanh, "tanh"),
}


class GeluFormula(OfThisGenerator, CustomGraphPass):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as Hugging Face's NewGELUActivation has it."""

    def __call__(self, graph: fx.Graph) -> None:
        changed = False
        for node in list(graph.nodes):
            found = _formula_at(node)
            if found is None or not _is_mps(x := found[0]) or not _are_last(found[1], node):
                continue
            result = node.meta["example_value"]
            with graph.inserting_before(node):
                wide = x
                if x.meta["example_value"].dtype != result.dtype:
                    wide = graph.call_method("to", (x, result.dtype))
                gelu = graph.call_function(torch.nn.functional.gelu, (wide,), {"approximate": "tanh"})
            wide.meta.setdefault("example_value", result)
            gelu.meta.update(node.meta)
            node.replace_all_uses_with(gelu)
            changed = True
        if changed:
            graph.eliminate_dead_code()


def _formula_at(node: fx.Node) -> tuple[fx.Node, set[fx.Node]] | None:
    """x and the nodes of the formula, where a node is its result."""
    if (factors := _nodes(node, "mul", 2)) is None:
        return None
    for half, rest in (factors, factors[::-1]):
        x = _with_number(half, "mul", 0.5)
        tanh = _with_number(rest, "add", 1.0)
        inner = _nodes(tanh, "tanh", 1)
        total = _with_number(inner[0] if inner else None, "mul", math.sqrt(2 / math.pi))
        terms = _nodes(total, "add", 2)
        if x is None or terms is None or x not in terms:
            continue
        term = terms[1 - terms.index(x)]
        power = _with_number(term, "mul", 0.044715)
        if _with_number(power, "pow", 3.0) is x:
            return x, {node, half, rest, tanh, inner[0], total, term, power}
    return None


def _are_last(nodes: set[fx.Node], last: fx.Node) -> bool:
    """Whether nothing stands between them: it might write to one of them, or to what they read."""
    for _ in nodes:
        if last not in nodes:
            return False
        last = last.prev
    return True


def _nodes(node: fx.Node | None, name: str, count: int) -> tuple[fx.Node, ...] | None:
    """The arguments of a call of that operator, of which there are so many, all of them nodes."""
    if not isinstance(node, fx.Node) or node.target not in OPERATORS[name] or node.kwargs or len(node.args) != count:
        return None
    return node.args if all(isinstance(a, fx.Node) for a in node.args) else None


def _with_number(node: fx.Node | None, name: str, number: float) -> fx.Node | None:
    """The other argument, where a node is that operator of a node and this number."""
    if not isinstance(node, fx.Node) or node.target not in OPERATORS[name] or node.kwargs or len(node.args) != 2:
        return None
    for other, constant in (node.args, node.args[::-1]):
        is_number = isinstance(constant, (int, float)) and math.isclose(constant, number, rel_tol=1e-6)
        if is_number and isinstance(other, fx.Node) and (name != "pow" or other is node.args[0]):
            return other
    return None


def _is_mps(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.device.type == "mps" and value.is_floating_point()
