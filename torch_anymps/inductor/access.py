"""Loads and stores of a generated kernel, and which of them may be vectorized: four elements at once."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from torch._inductor.codegen.triton_utils import is_unaligned_buffer_name
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing
from torch.utils._sympy.symbol import SymT, free_symbol_is_type

from .dtypes import REGISTER


@dataclass
class Load:
    var: str
    buffer: str
    pointer: str
    index: sympy.Expr
    dtype: torch.dtype

    @property
    def key(self) -> tuple[str, sympy.Expr]:
        return self.pointer, self.index


@dataclass
class Store:
    buffer: str
    pointer: str
    index: sympy.Expr
    value: str
    dtype: torch.dtype


def vector_type(dtype: torch.dtype) -> str:
    kind = REGISTER[dtype]
    return f"vector<{kind}, 4>" if kind.endswith("_t") else f"{kind}4"


def is_removed(kernel, buffer: str) -> bool:
    """Whether nobody reads a buffer that the kernel would write."""
    return any(
        buffer in names
        for names in (
            V.graph.removed_buffers,
            kernel.removed_buffers,
            V.graph.inplaced_to_remove,
            kernel.inplaced_to_remove,
        )
    )


def stride_of(kernel, tree, index: sympy.Expr) -> int | None:
    """What an index grows by with each of four neighbours along a range, 0 or 1, all of them in one row of it.

    None where it is neither, or not known. The first of the four is at a multiple of four.
    """
    if free_symbol_is_type(index, SymT.TMP):  # values that are loaded, or computed, may be anything
        return None
    moving = _moving(kernel, tree, index)
    index = _of_four(index, moving) if moving is not None else None
    if index is None:
        return None
    step = sympy.expand(index.subs({s: s + 1 for s in moving}) - index)
    return int(step) if step in (0, 1) else None


def is_aligned(kernel, tree, buffer: str, index: sympy.Expr) -> bool:
    """Whether every fourth element along a range, from the first, lies at a multiple of four elements.

    The four are neighbours: stride_of is not None.
    """
    if is_unaligned_buffer_name(buffer):
        return False
    moving = _moving(kernel, tree, index)
    rest = sympy.expand(_of_four(index, moving).subs(dict.fromkeys(moving, sympy.S.Zero)))
    return all(_is_multiple_of_4(term) for term in _terms(rest))


def _moving(kernel, tree, index: sympy.Expr) -> list[sympy.Symbol] | None:
    """Symbols that differ among four neighbours along a range; None where it is not known whether others do."""
    entries = {s: e for s in index.free_symbols if (e := kernel.range_tree_nodes.get(s)) is not None and e.root is tree}
    multiple_of = V.graph.sizevars.statically_known_multiple_of
    moving = [s for s, e in entries.items() if e.divisor == 1]
    for entry in entries.values():
        is_whole = entry.divisor == 1 and entry.length == tree.numel  # what its last four lack is not asked for
        if not is_whole and not multiple_of(entry.length if entry.divisor == 1 else entry.divisor, 4):
            return None
    return [*moving, tree.index_sym()] if index.has(tree.index_sym()) else moving


def _of_four(index: sympy.Expr, moving: list[sympy.Symbol]) -> sympy.Expr | None:
    """An index without quotients and remainders of what moves, as it is for four neighbours; None: not known.

    (m + 4 a) / (4 b) is the same for all four, any multiple of one, and (m + 4 a) % (4 b) grows with m.
    """
    replaced = {}
    index = index.expand(identity=True)
    for node in index.atoms(FloorDiv, ModularIndexing):
        inside = [s for s in moving if node.has(s)]
        if not inside:
            continue
        base, divisor, modulus = (*node.args, None)[:3]
        base = sympy.expand(base)
        others = sympy.expand(base - inside[0])
        if len(inside) > 1 or others.has(inside[0]) or not all(_is_multiple_of_4(term) for term in _terms(others)):
            return None
        if _is_multiple_of_4(divisor):
            replaced[node] = sympy.Dummy("quotient", integer=True)
        elif divisor == 1 and modulus is not None and _is_multiple_of_4(modulus):
            replaced[node] = inside[0]
        else:
            return None
    return index.xreplace(replaced)


def _terms(expr: sympy.Expr) -> tuple[sympy.Expr, ...]:
    return expr.args if isinstance(expr, sympy.Add) else (expr,)


def _is_multiple_of_4(term: sympy.Expr) -> bool:
    coefficient, rest = term.as_coeff_Mul()
    if coefficient.is_Integer and coefficient % 4 == 0:
        return True
    if isinstance(rest, ModularIndexing) and rest.args[1] == 1:  # a remainder of multiples
        base, _, modulus = rest.args
        return all(_is_multiple_of_4(t) for t in [*_terms(sympy.expand(base)), modulus])
    return V.graph.sizevars.statically_known_multiple_of(term, 4)
