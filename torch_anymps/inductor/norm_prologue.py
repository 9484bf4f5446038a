"""Norms of the few rows that products read, done by these products as a prologue: each spares a dispatch.

What is found is what Inductor leaves of layer_norm and rms_norm, and these norms written out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from .epilogue_steps import RESHAPES, is_conversion
from .epilogues import FEW_ROWS, source_of
from .product_passes import CALLED, is_for_called, is_mps

aten, anymps = torch.ops.aten, torch.ops.anymps

# csrc/gemm/norm_prologue.cpp: kInstances, by the number of rows. Others run norm and product apart.
MAX_SIZES = {1: 4096, FEW_ROWS: 1024}
VECTOR = 4  # elements of the other factor that are read at once
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Views and copies, which keep the order of elements where they keep their number.
SAME_ORDER = {
    *RESHAPES,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.expand.default,
    aten.clone.default,
}


def add_norm_prologues(graph: fx.Graph) -> None:
    """Has products of few rows do the norms of their rows, where nothing else reads these norms.

    Only of rows that are in memory: a kernel that computes rows does their norm, too. Norms are not rounded to 16 bits.
    """
    results: dict[fx.Node, fx.Node] = {}
    for product, norm in _found(graph, _is_in_memory):
        results[product.node] = _replace(graph, product, norm, results)
    graph.eliminate_dead_code()


def rows_to_store(graph: fx.Graph) -> set[fx.Node]:
    """Rows whose norm products could do if these rows were in memory."""
    return {norm.source for _, norm in _found(graph, _is_float)}


@dataclass(frozen=True)
class Rows:
    """Rows of a norm, `count` of `size` elements: nodes may have them in more dimensions than two."""

    count: int
    size: int

    def are_few(self) -> bool:
        if not isinstance(self.count, int) or not isinstance(self.size, int):
            return False
        return self.count * self.size > 0 and any(self.count <= n and self.size <= k for n, k in MAX_SIZES.items())

    def are(self, node) -> bool:
        return _is_of(node, self.count, self.size)

    def have_numbers(self, node) -> bool:
        """Whether a node is one number a row."""
        return _is_of(node, self.count, 1)

    def have_columns(self, node) -> bool:
        """Whether a node is one number a column."""
        return _is_of(node, 1, self.size)


def _is_of(node, count: int, size: int) -> bool:
    """Whether a node is a tensor of `count` times `size` elements, the last dimension being `size`."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim() or not all(isinstance(n, int) for n in value.shape):
        return False
    return value.shape[-1] == size and math.prod(value.shape) == count * size


@dataclass(frozen=True)
class Product:
    """steps(summand + mat1 @ mat2), which `node` is."""

    node: fx.Node
    summand: fx.Node | None
    mat1: fx.Node
    mat2: fx.Node
    steps: str = ""
    operand: fx.Node | None = None
    dtype: torch.dtype | None = None

    @property
    def rows(self) -> Rows:
        return Rows(*self.mat1.meta["val"].shape)

    def can_have_prologue(self) -> bool:
        are_floats = all(_is_float(node) for node in (self.node, self.mat1, self.mat2))
        return are_floats and self.rows.are_few() and _is_read_by_vectors(self.mat2)


@dataclass(frozen=True)
class Norm:
    """normalized(source) * weight + bias, of each row. nodes: what computes it, up to the product."""

    source: fx.Node
    eps: float
    centered: bool
    weight: fx.Node | None
    bias: fx.Node | None
    nodes: frozenset[fx.Node]


def _is_float(node: fx.Node) -> bool:
    return is_mps(node) and node.meta["val"].dtype in FLOATS


def _is_read_by_vectors(factor: fx.Node) -> bool:
    """Along the dimension that is contiguous."""
    value = factor.meta["val"]
    sizes, strides = value.shape, value.stride()
    if not all(isinstance(n, int) for n in (*sizes, *strides)) or 1 not in strides:
        return False
    dimension = strides.index(1)
    return sizes[dimension] % VECTOR == 0 and strides[1 - dimension] % VECTOR == 0


def _products(graph: fx.Graph) -> list[Product]:
    """Those of few rows; a sum that is called for stands for the product that it adds to."""
    products, summed = [], set()
    for node in graph.nodes:
        product = _product(node)
        if product is None or not product.can_have_prologue():
            continue
        products.append(product)
        if node.target is aten.add.Tensor:
            summed |= {a for a in node.args if isinstance(a, fx.Node) and a.target is aten.mm.default}
    return [product for product in products if product.node not in summed]


def _product(node: fx.Node) -> Product | None:
    if node.target is anymps.addmm_epilogue.default and not node.kwargs:
        return Product(node, *node.args)
    if node.target is aten.mm.dtype and not node.kwargs:
        return Product(node, None, *node.args[:2], dtype=node.args[2])
    source = source_of(node)
    if source is None or source.is_convolution:
        return None
    if node.target is aten.add.Tensor and not is_for_called(node):  # the kernel that reads it adds, too
        return None
    return Product(node, source.summand, *source.factors)


def _found(graph: fx.Graph, is_source) -> list[tuple[Product, Norm]]:
    """Products, each with the norm that it can do."""
    graph.eliminate_dead_code()  # readers are counted
    norms = ((product, _norm_before(product)) for product in _products(graph))
    return _without_other_readers([(product, norm) for product, norm in norms if norm and is_source(norm.source)])


def _norm_before(product: Product) -> Norm | None:
    """The norm that a product reads as mat1, whose weight and bias are in memory."""
    rows = product.rows
    for scaled, bias in _without_columns(product.mat1, aten.add.Tensor, rows):
        for normalized, weight in _without_columns(scaled, aten.mul.Tensor, rows):
            if (found := _normalized(normalized, rows)) is None:
                continue
            source, eps, centered = found
            columns = [node for node in (weight, bias) if node is not None]
            if all(map(_is_in_memory, columns)):
                return Norm(source, eps, centered, weight, bias, _between(product.mat1, [source, *columns]))
    return None


def _stripped(node):
    """What a node is but for its shape, and for conversions from one float to another."""
    while isinstance(node, fx.Node) and (_keeps_order(node) or _is_float_conversion(node)):
        node = node.args[0]
    return node


def _keeps_order(node: fx.Node) -> bool:
    if node.target not in SAME_ORDER:
        return False
    sizes, of = node.meta["val"].shape, node.args[0].meta["val"].shape
    return all(isinstance(n, int) for n in (*sizes, *of)) and math.prod(sizes) == math.prod(of)


def _is_float_conversion(node: fx.Node) -> bool:
    return is_conversion(node) and node.args[1] in FLOATS and _is_float(node.args[0])


def _between(last: fx.Node, inputs: list[fx.Node]) -> frozenset[fx.Node]:
    """All that `last` is computed by, but for the inputs as they are and reshaped or converted."""
    found: set[fx.Node] = set()
    remaining = [last]
    while remaining:
        node = remaining.pop()
        if node not in found and _stripped(node) not in inputs:
            found.add(node)
            remaining += node.all_input_nodes
    return frozenset(found)


def _is_in_memory(node: fx.Node) -> bool:
    """Whether a node, as it is stripped, is there before any generated kernel runs for it."""
    if not _is_float(node) or not node.meta["val"].is_contiguous():
        return False
    if node.target is operator.getitem:
        node = node.args[0]
    return node.op in ("placeholder", "get_attr") or node.target in CALLED


# What norms are made of: each function takes a node and returns parts of it, or None where it is something else.


def _arguments(node, *targets) -> tuple | None:
    """The two arguments of one of these operators of elements."""
    node = _stripped(node)
    is_one = isinstance(node, fx.Node) and node.target in targets and not node.kwargs and len(node.args) == 2
    return node.args if is_one else None


def _either_order(arguments: tuple | None) -> list[tuple]:
    return [] if arguments is None else [arguments, arguments[::-1]]


def _without_columns(node: fx.Node, target, rows: Rows) -> Iterator[tuple[fx.Node, fx.Node | None]]:
    """A node, and where it is a sum or product with a number of each column, what is left without, and the numbers."""
    yield node, None
    for rest, columns in _either_order(_arguments(node, target)):
        if rows.are(rest) and rows.have_columns(columns):
            yield rest, _stripped(columns)


def _normalized(node: fx.Node, rows: Rows) -> tuple[fx.Node, float, bool] | None:
    """(source, eps, centered) of source / sqrt(mean(source^2) + eps), or that of source - mean(source)."""
    for dividend, moment, eps in _over_root(node, rows):
        if (source := _difference_from_mean(dividend, rows)) is not None:
            if source in (_variance_of(moment, rows), _difference_from_mean(_mean_square_of(moment, rows), rows)):
                return source, eps, True
        elif (squared := _mean_square_of(moment, rows)) is not None and squared is _stripped(dividend):
            return squared, eps, False
    return None


def _over_root(node, rows: Rows) -> Iterator[tuple[fx.Node, fx.Node, float]]:
    """(x, moment, eps) of x / sqrt(moment + eps), the moment being one number a row."""
    found = [
        (x, root, _radicand(root, aten.rsqrt, -0.5)) for x, root in _either_order(_arguments(node, aten.mul.Tensor))
    ]
    if (quotient := _arguments(node, aten.div.Tensor)) is not None:
        found.append((*quotient, _radicand(quotient[1], aten.sqrt, 0.5)))
    for x, root, radicand in found:
        for moment, eps in _either_order(_arguments(radicand, aten.add.Tensor, aten.add.Scalar)):
            if rows.are(x) and rows.have_numbers(root) and isinstance(eps, (int, float)):
                yield x, moment, float(eps)


def _radicand(node, root, exponent: float):
    """y, where a node is root(y), or y to that power."""
    node = _stripped(node)
    if not isinstance(node, fx.Node):
        return None
    is_power = node.target is aten.pow.Tensor_Scalar and node.args[1] == exponent
    return node.args[0] if is_power or node.target is root.default else None


def _difference_from_mean(node, rows: Rows) -> fx.Node | None:
    difference = _arguments(node, aten.sub.Tensor)
    if difference is None or not rows.are(difference[0]) or not rows.have_numbers(difference[1]):
        return None
    source = _stripped(difference[0])
    return source if _mean_of(difference[1], rows) is source else None


def _mean_square_of(node, rows: Rows) -> fx.Node | None:
    """x of mean(x^2)"""
    square = _mean_of(node, rows)
    if isinstance(square, fx.Node) and square.target is aten.pow.Tensor_Scalar and square.args[1] == 2:
        return _stripped(square.args[0])
    factors = _arguments(square, aten.mul.Tensor)
    if factors is None or _stripped(factors[0]) is not _stripped(factors[1]):
        return None
    return _stripped(factors[0])


def _mean_of(node, rows: Rows) -> fx.Node | None:
    node = _stripped(node)
    if _is_part(node, 1, aten.var_mean.correction):
        return _reduced(node.args[0], rows, {"correction": 0})
    is_mean = isinstance(node, fx.Node) and node.target is aten.mean.dim
    return _reduced(node, rows, {}) if is_mean else None


def _variance_of(node, rows: Rows) -> fx.Node | None:
    """Of one that is divided by the number of elements."""
    node = _stripped(node)
    if _is_part(node, 0, aten.var_mean.correction):
        node = node.args[0]
    elif not isinstance(node, fx.Node) or node.target is not aten.var.correction:
        return None
    return _reduced(node, rows, {"correction": 0})


def _is_part(node, index: int, target) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.target is operator.getitem
        and node.args[1] == index
        and (node.args[0].target is target)
    )


def _reduced(node: fx.Node, rows: Rows, options: dict) -> fx.Node | None:
    """What a reduction over the last dimension of rows reads, which has these options."""
    source, dims = (*node.args, None)[:2]
    given = {key: value for key, value in node.kwargs.items() if key not in ("keepdim", "dtype")}
    is_last = rows.are(source) and dims is not None and list(dims) in ([-1], [source.meta["val"].dim() - 1])
    return _stripped(source) if is_last and given == options else None


def _without_other_readers(found: list[tuple[Product, Norm]]) -> list[tuple[Product, Norm]]:
    """Those whose norm nothing but these products reads, so that it need not be computed beside them."""
    while True:
        readers = {product.node for product, _ in found}.union(*(norm.nodes for _, norm in found))
        kept = {node for product, _ in found for node in (product.summand, product.mat2, product.operand)}
        spared = [pair for pair in found if not pair[1].nodes & kept and _are_read_by(pair[1].nodes, readers)]
        if len(spared) == len(found):
            return found
        found = spared


def _are_read_by(nodes: frozenset[fx.Node], readers: set[fx.Node]) -> bool:
    return all(user in readers for node in nodes for user in node.users)


def _replace(graph: fx.Graph, product: Product, norm: Norm, results: dict[fx.Node, fx.Node]) -> fx.Node:
    """The product with its norm, in its place. results: of products that have been replaced before."""

    def reshaped(node: fx.Node | None, *sizes: int) -> fx.Node | None:
        node = results.get(node, node)
        return node if node is None or node.meta["val"].shape == sizes else _reshaped(graph, node, sizes)

    rows, node = product.rows, product.node
    with graph.inserting_before(node):
        mat1 = reshaped(norm.source, rows.count, rows.size)
        weight, bias = reshaped(norm.weight, rows.size), reshaped(norm.bias, rows.size)
        summand, mat2, operand = (results.get(n, n) for n in (product.summand, product.mat2, product.operand))
        factors = (summand, mat1, mat2, weight, bias)
        arguments = (*factors, norm.eps, norm.centered, product.steps, operand, product.dtype)
        result = graph.call_function(anymps.addmm_norm.default, arguments)
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    return result


def _reshaped(graph: fx.Graph, node: fx.Node, sizes: tuple[int, ...]) -> fx.Node:
    reshaped = graph.call_function(aten.reshape.default, (node, list(sizes)))
    reshaped.meta["val"] = node.meta["val"].reshape(sizes)
    return reshaped
