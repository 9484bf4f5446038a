"""Positions as values: what Inductor knows of torch.arange without computing it.

It follows positions through sums, products and conversions as exact numbers, whatever their dtype (TypedExpr). That
ends here where a dtype cannot hold them: a narrow integer wraps, a bool is 0 or 1, a float is rounded. It ends, too,
where numbers outgrow the 32 bits that kernels compute indices in.
"""

from __future__ import annotations

import functools

import sympy
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

_INDEX = (-(2**31), 2**31 - 1)
_UNKNOWN_SIZE = 2**15  # is assumed of a size without a bound: products of two of them are still indices
# The least and the largest number, between which a dtype has all whole numbers.
_RANGES = {dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max) for dtype in (torch.int8, torch.int16)}
_RANGES |= {dtype: (0, torch.iinfo(dtype).max) for dtype in (torch.uint8, torch.uint16)}
_RANGES |= {torch.bool: (0, 1), torch.int32: _INDEX, torch.uint32: (0, _INDEX[1]), torch.int64: _INDEX}
for _dtype, _bits in ((torch.float16, 11), (torch.bfloat16, 8), (torch.float32, 24)):
    _RANGES[_dtype] = (-(2**_bits), 2**_bits)


def install() -> None:
    from torch._inductor.index_propagation import IndexPropagation

    IndexPropagation.propagate_sympy = _ending_where_rounded(IndexPropagation.propagate_sympy)


def _ending_where_rounded(propagate):
    @functools.wraps(propagate)
    def propagate_sympy(self, name, args, kwargs):
        result = propagate(self, name, args, kwargs)
        if not getattr(result, "is_symbolic", False) or "mps" not in V.graph.device_types:
            return result
        return result if _holds(result.value, self) else self.fallback(name, args, kwargs)

    return propagate_sympy


def _holds(value, propagation) -> bool:
    """Whether all values of a TypedExpr are numbers of its dtype."""
    if value.is_constant() or value.dtype not in _RANGES:
        return True
    ranges = dict(propagation.var_to_range)
    sizes = {k: sympy.sympify(size) for k, size in propagation.indirect_var_ranges.items()}  # some are ints
    ranges |= {k: ValueRanges(0, bound_sympy(size).upper - 1) for k, size in sizes.items()}
    if value.dtype in (torch.int32, torch.uint32, torch.int64):
        for symbol, bounds in ranges.items():
            if not bounds.upper.is_finite:
                ranges[symbol] = ValueRanges(bounds.lower if bounds.lower.is_finite else 0, _UNKNOWN_SIZE)
    return _is_between(bound_sympy(value.expr, ranges), *_RANGES[value.dtype])


def fits_index(index: sympy.Expr, kernel) -> bool:
    """Whether an expression of a kernel's positions, and what it is computed from, surely fits its index type."""
    if kernel.index_dtype == "int64_t" or index.is_symbol or index.is_number:
        return True
    ranges = dict(V.graph.sizevars.shape_env.var_to_range)
    for symbol in index.free_symbols:
        entry, value = kernel.range_tree_nodes.get(symbol), kernel.cse.varname_map.get(symbol.name)
        if entry is not None:
            ranges[symbol] = ValueRanges(0, bound_sympy(entry.length, ranges).upper - 1)
        elif value is not None:
            ranges[symbol] = value.bounds  # of what is read, known where it is an index by itself
        else:
            return False
    parts = (part for part in sympy.preorder_traversal(index) if part.is_integer and not part.is_number)
    return all(_is_between(bound_sympy(part, ranges), *_INDEX) for part in parts)


def _is_between(bounds: ValueRanges, least: int, largest: int) -> bool:
    return bool(bounds.lower >= least and bounds.upper <= largest)
