"""Rewrites of products in graphs: what follows them is done as their results are written."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import fx

aten, anymps = torch.ops.aten, torch.ops.anymps

CONVERT = torch.ops.prims.convert_element_type.default
# Operators that are called: nothing fuses into them.
CALLED = {
    aten.mm.default,
    aten.mm.dtype,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    anymps.addmm_activation.default,
    anymps.addmm_activation_and_input.default,
    anymps.mm_activation_backward.default,
}
RESHAPES = {aten.view.default, aten.reshape.default}
VIEWS = {*RESHAPES, aten.permute.default, aten.t.default, aten.unsqueeze.default}


def is_mps(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "mps"


def is_conversion(node: fx.Node, dtype: torch.dtype | None = None) -> bool:
    return node.target is CONVERT and isinstance(node.args[0], fx.Node) and dtype in (None, node.args[1])


def is_for_called(node: fx.Node, test=all) -> bool:
    """Whether all, or any, that read a node or a view of it are operators that are called, or results of the graph."""
    return test(
        user.op == "output" or user.target in CALLED or (user.target in VIEWS and is_for_called(user, test))
        for user in node.users
    )


def widen_products(graph: fx.Graph) -> None:
    """Products of 16-bit floats that only the results of the graph need, as float32: written so, not converted.

    Gradients of weights under autocast. They are not rounded to 16 bits on the way.
    """
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


def activate_products(graph: fx.Graph) -> None:
    """Activations of products, and gradients of activations from products, where memory would lie between."""
    for node in list(graph.nodes):
        if node.target in (aten.gelu.default, aten.relu.default):
            _activate(graph, node)
        elif node.target is aten.gelu_backward.default:
            _activate_backward(graph, node)


def _activation_name(node: fx.Node) -> str:
    if node.target is aten.relu.default:
        return "relu"
    return "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu"


@dataclass(frozen=True)
class Product:
    """mat1 @ mat2, two matrices, with a summand or without: what `node` is."""

    node: fx.Node
    summand: fx.Node | None
    mat1: fx.Node
    mat2: fx.Node

    @property
    def dtype(self) -> torch.dtype:
        return self.node.meta["val"].dtype


def _product_of(node: fx.Node) -> Product | None:
    """The product that a node is, reshaped or in float32; without factors alpha and beta."""
    while node.target in RESHAPES or is_conversion(node, torch.float32):
        node = node.args[0]
    if node.op != "call_function" or node.kwargs or not is_mps(node) or not node.meta["val"].is_floating_point():
        return None
    if node.target is aten.mm.default:
        return Product(node, None, *node.args)
    if node.target is aten.addmm.default:
        summand, mat1, mat2 = node.args
    elif node.target is aten.add.Tensor:  # Inductor takes the bias out of what activations follow
        product, summand = node.args
        if not _is_matrix_product(product):
            product, summand = summand, product
        if not _is_matrix_product(product) or len(product.users) > 1 or not isinstance(summand, fx.Node):
            return None
        mat1, mat2 = product.args
        if summand.meta["val"].shape not in (node.meta["val"].shape, node.meta["val"].shape[1:]):
            return None
    else:
        return None
    return Product(node, summand, mat1, mat2) if summand.meta["val"].dtype == node.meta["val"].dtype else None


def _is_matrix_product(node) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.mm.default


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


def _activate(graph: fx.Graph, node: fx.Node) -> None:
    product = _product_of(node.args[0])
    if product is None:
        return
    readers = _readers(node, product.dtype)
    if not readers or not all(is_for_called(reader) and _sizes(reader) for reader in readers):
        return
    sum_ = product.node
    users = _chain_users(node, sum_)
    with graph.inserting_before(sum_):
        arguments = (product.summand, product.mat1, product.mat2, _activation_name(node))
        if users:
            both = graph.call_function(anymps.addmm_activation_and_input.default, arguments)
            both.meta["val"] = (sum_.meta["val"], sum_.meta["val"])
            result = _new(graph, sum_, operator.getitem, both, 0)
            sum_.replace_all_uses_with(_new(graph, sum_, operator.getitem, both, 1))
        else:
            result = _new(graph, sum_, anymps.addmm_activation.default, *arguments)
    _replace(graph, readers, result)


def _chain_users(node: fx.Node, product: fx.Node) -> list[fx.Node]:
    """What reads a product beside the activation `node`, which may read it reshaped or converted."""
    users = []
    step = node
    while step is not product:
        previous = step.args[0]
        users += [user for user in previous.users if user is not step]
        step = previous
    return users


def _activate_backward(graph: fx.Graph, node: fx.Node) -> None:
    grad, activated = node.args[:2]
    product = _product_of(grad)
    if product is None or product.summand is not None or _chain_users(node, product.node):
        return
    if is_conversion(activated, torch.float32):
        activated = activated.args[0]
    value, wanted = activated.meta["val"], product.node.meta["val"]
    readers = _readers(node, wanted.dtype)
    if value.dtype != wanted.dtype or not all(map(_sizes, [activated, product.node, *readers])):
        return
    if not any(is_for_called(reader, any) for reader in readers):
        return
    with graph.inserting_before(node):
        matrix = activated
        if value.dim() != 2:
            matrix = graph.call_function(aten.reshape.default, (activated, _sizes(product.node)))
            matrix.meta["val"] = value.reshape(wanted.shape)
        arguments = (product.mat1, product.mat2, matrix, _activation_name(node))
        result = _new(graph, product.node, anymps.mm_activation_backward.default, *arguments)
    _replace(graph, readers, result)


def _new(graph: fx.Graph, like: fx.Node, target, *args) -> fx.Node:
    made = graph.call_function(target, args)
    made.meta.update(like.meta)
    return made


def _sizes(node: fx.Node) -> list[int]:
    """The sizes of a node for a reshape, of which one may be dynamic; [] where more are."""
    sizes = [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]
    return sizes if sizes.count(-1) <= 1 else []


def _replace(graph: fx.Graph, nodes: list[fx.Node], result: fx.Node) -> None:
    """The result, of as many elements, in the place of nodes, which are dead then."""
    for node in nodes:
        value = node.meta["val"]
        with graph.inserting_before(node):
            shaped = _new(graph, node, aten.reshape.default, result, _sizes(node)) if value.dim() != 2 else result
        node.replace_all_uses_with(shaped)
