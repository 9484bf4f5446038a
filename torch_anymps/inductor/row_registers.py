"""What the loops over a row find in registers: the row itself, and what all of its elements share, such as its mean."""

from __future__ import annotations

import functools

import sympy
from torch.utils._sympy.symbol import SymT, free_symbol_is_type

from .access import vector_type
from .device import device_config
from .dtypes import REGISTER
from .geometry import MAX_PERSISTENT_ELEMENTS, MAX_PERSISTENT_LOADS, MAX_UNROLLED_LINES, OTHER_REGISTERS
from .shared_values import SharedValues


class RowRegisters:
    """The part of a LoopWriter that decides what is there, and declares it."""

    of_rows: dict = {}  # Load.key -> the variable that has it

    @functools.cached_property
    def reused(self) -> SharedValues:
        return SharedValues(self)

    @functools.cached_property
    def written(self) -> set[str]:
        """Pointers that the kernel stores through: what it loads by them may change."""
        return {s.pointer for p in self.kernel.phases for s in [*p.stores, *p.row_stores]}

    def _persistent_loads(self) -> int:
        """Iterations of loops over a row that is read once and kept in registers; 0: it is read by each loop."""
        kernel = self.kernel
        loops = [p for p in kernel.phases if p.in_loop]
        if not isinstance(self.tree.numel, sympy.Integer):
            return 0
        step = self.geometry.step * self.row_width
        count = -(-int(self.tree.numel) // step)
        if kernel.partial_sums is not None:
            return count
        if self.ragged or device_config().software or kernel.is_heavy:
            return 0
        lines = sum(len(p.compute) + len(p.loads) for p in loops)
        most = MAX_PERSISTENT_ELEMENTS // self.row_width if self.geometry.threads_per_row else MAX_PERSISTENT_LOADS
        if count > most or count * self.width * lines > MAX_UNROLLED_LINES:
            return 0
        arrays = len(self._read_again(loops)) + len(self.reused.keeps)
        if arrays * count * self.row_width + OTHER_REGISTERS > device_config().registers:
            return 0
        return count

    def _declare_persistent(self) -> None:
        """Registers for what more than one loop reads or computes."""
        if not self.persistent:
            return
        kernel = self.kernel
        self.row_arrays: dict = {key: [name, True] for key, name in self.of_all_rows.items()}
        for load in self._read_again([p for p in kernel.phases if p.in_loop]):
            if load.key in self.of_all_rows:
                continue
            name = f"row_{load.var}"
            vectorized = self.width > 1 and kernel.is_vectorized(self.tree, load)
            kind = vector_type(load.dtype) if vectorized else REGISTER[load.dtype]
            self.code.writeline(f"{kind} {name}[{self.persistent}];")
            self.row_arrays[load.key] = [name, False]
        self.code.writelines(self.reused.declarations(self.width, self.persistent))

    def _read_again(self, loops: list) -> list:
        """Loads of elements that more than one of the loops has, the first of each."""
        kernel, tree = self.kernel, self.tree
        found: dict = {}
        for phase in loops:
            for load in phase.loads:
                found.setdefault(load.key, []).append(load)
        return [
            load
            for load, *again in found.values()
            if again and load.pointer not in self.written and not self.is_of_row(load.index)
            if self.width == 1 or kernel.is_vectorized(tree, load) or kernel.is_broadcast(tree, load)
        ]

    def _load_row_values(self) -> None:
        """One load each, before the loops."""
        kernel = self.kernel
        loads = {x.key: x for p in kernel.phases if p.in_loop for x in p.loads}
        shared = {key: x for key, x in loads.items() if x.pointer not in self.written and self.is_of_row(x.index)}
        self.of_rows = {key: f"row_{x.var}" for key, x in shared.items()}
        self.code.writelines([f"let {self.of_rows[key]} = {self._load(x)};" for key, x in shared.items()])

    def is_of_row(self, index: sympy.Expr) -> bool:
        """Whether an index is the same for all elements of a row, and known before them."""
        if free_symbol_is_type(index, SymT.TMP) or index.has(self.tree.index_sym()):
            return False
        entries = [self.kernel.range_tree_nodes.get(s) for s in index.free_symbols]
        return all(entry is None or entry.root is not self.tree for entry in entries)
