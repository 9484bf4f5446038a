"""Numbers of sizes alone that need float64, which Python and C++ compute with and kernels do not."""

from __future__ import annotations

import sympy
from torch._inductor.virtualized import V
from torch.utils._sympy.symbol import SymT, make_symbol, symbol_is_type

_GIVEN = (SymT.SIZE, SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT, SymT.PRECOMPUTED_SIZE)


def computed_by_host(index: sympy.Basic) -> sympy.Basic:
    """An expression whose parts with floats, as far as they are the same for all elements, are arguments.

    int(size * 0.29) is 28 for 100, and 29 in float32.
    """
    parts = list(_parts(index))
    return index.xreplace({part: _argument(part) for part in parts}) if parts else index


def _parts(index: sympy.Basic):
    """The outermost ones."""
    if not index.free_symbols or index.is_Symbol or all(map(_is_whole, sympy.preorder_traversal(index))):
        return
    if isinstance(index, sympy.Expr) and all(symbol_is_type(s, _GIVEN) for s in index.free_symbols):
        yield index
        return
    for part in index.args:
        yield from _parts(part)


def _is_whole(part: sympy.Basic) -> bool:
    return not isinstance(part, sympy.Expr) or part.is_integer


def _argument(part: sympy.Expr) -> sympy.Symbol:
    """As SizeVarAllocator.lookup_precomputed_size, whose symbols are whole numbers and never negative."""
    sizes = V.graph.sizevars
    part = sizes.remove_precomputed_replacements(part)
    if part not in sizes.precomputed_replacements:
        count = len(sizes.precomputed_replacements)
        assumptions = {"integer": True} if part.is_integer else {"real": True}
        symbol = make_symbol(SymT.PRECOMPUTED_SIZE, count, nonnegative=part.is_nonnegative, **assumptions)
        sizes.precomputed_replacements[part] = symbol
        sizes.inv_precomputed_replacements[symbol] = part
    return sizes.precomputed_replacements[part]
