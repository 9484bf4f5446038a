"""Loads and stores of a generated kernel, and which of them may be vectorized: four elements at once."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from torch._inductor.codegen.triton_utils import is_unaligned_buffer_name
from torch._inductor.virtualized import V
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
    entries = {s: e for s in index.free_symbols if (e := kernel.range_tree_nodes.get(s)) is not None and e.root is tree}
    moving = []
    multiple_of = V.graph.sizevars.statically_known_multiple_of
    for symbol, entry in entries.items():
        if entry.divisor == 1:
            if not multiple_of(entry.length, 4):
                return None
            moving.append(symbol)
        elif not multiple_of(entry.divisor, 4):
            return None
    if index.has(tree.index_sym()):
        moving.append(tree.index_sym())
    if not moving:
        return 0
    step = sympy.expand(index.subs({s: s + 1 for s in moving}) - index)
    return int(step) if step in (0, 1) else None


def is_aligned(kernel, tree, buffer: str, index: sympy.Expr) -> bool:
    """Whether every fourth element along a range, from the first, lies at a multiple of four elements."""
    if is_unaligned_buffer_name(buffer):
        return False
    first = {tree.index_sym(): sympy.S.Zero}
    for symbol in index.free_symbols:
        entry = kernel.range_tree_nodes.get(symbol)
        if entry is not None and entry.root is tree and entry.divisor == 1:
            first[symbol] = sympy.S.Zero
    rest = sympy.expand(index.subs(first))
    terms = rest.args if isinstance(rest, sympy.Add) else (rest,)
    return all(_is_multiple_of_4(term) for term in terms)


def _is_multiple_of_4(term: sympy.Expr) -> bool:
    coefficient, _ = term.as_coeff_Mul()
    if coefficient.is_Integer and coefficient % 4 == 0:
        return True
    return V.graph.sizevars.statically_known_multiple_of(term, 4)
