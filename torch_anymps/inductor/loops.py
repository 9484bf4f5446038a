"""The Slang text of a kernel: its arguments, and its phases as loops, four elements wide where memory allows."""

from __future__ import annotations

import re

import sympy
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.virtualized import V

from .access import vector_type
from .arguments import declare_arguments
from .device import device_config
from .geometry import (
    MAX_PERSISTENT_ELEMENTS,
    RowHints,
    column_geometry,
    pointwise_geometry,
    reduction_geometry,
)
from .long_loops import LongLoops
from .mix_order import PartialSumLoops
from .row_registers import RowRegisters

TILE = 32  # elements of x, and of y, of a workgroup that transposes


class LoopWriter(LongLoops, PartialSumLoops, RowRegisters):
    def __init__(self, kernel):
        self.kernel = kernel
        self.code = IndentedBuffer()
        self.index = kernel.index_dtype
        self.is_reduction = kernel.features.is_reduction()
        self.trees = [t for t in kernel.range_trees if self.is_reduction or not t.is_reduction]
        inner = [t for t in self.trees if t.is_reduction]
        assert len(inner) <= 1, "one range of reductions"
        # x, of which neighbours are neighbours in memory, comes first.
        self.outer = sorted((t for t in kernel.range_trees if not t.is_reduction), key=lambda t: t.prefix)
        self.tiled = self._is_transposition()
        self.tree = inner[0] if inner else self.outer[-1] if self.tiled else self.outer[0]
        hints = RowHints.of(kernel) if self.is_reduction else None
        if kernel.partial_sums is not None:
            self.geometry = kernel.partial_sums.geometry
        else:
            self.geometry = reduction_geometry(kernel, self.tree, hints) if hints else pointwise_geometry()
        self.by_columns = self._is_by_columns()
        if self.by_columns:
            self.tree_of_vectors, self.width, self.row_width = self.outer[0], device_config().vector, 1
            self.geometry = column_geometry(hints, self.width)
        else:
            self.tree_of_vectors = self.tree
            self.width = self.row_width = device_config().vector if self.tiled else self._width()
        # Rows of whole vectors and one to three elements.
        self.ragged = not V.graph.sizevars.statically_known_multiple_of(self.tree.numel, self.row_width)
        self.rows_per_group = self.geometry.workgroup * self.width
        if self.is_reduction:
            self.rows_per_group = self.geometry.rows * (self.width if self.by_columns else 1)
        self.persistent = self._persistent_loads() if self.is_reduction else 0
        self.in_registers: dict = {}

    # --- decisions

    def _is_transposition(self) -> bool:
        """Whether a load is contiguous along y where stores are along x: threads then take squares of both."""
        kernel, device = self.kernel, device_config()
        if self.is_reduction or device.vector == 1 or kernel.is_heavy or [t.prefix for t in self.outer] != ["x", "y"]:
            return False
        y = self.outer[1]
        if not V.graph.sizevars.statically_known_multiple_of(y.numel, device.vector):
            return False
        return any(kernel.is_vectorized(y, load) for phase in kernel.phases for load in phase.loads)

    def _is_by_columns(self) -> bool:
        """Whether threads take four neighbouring columns each: rows of one loop whose neighbours are so in memory."""
        kernel, device = self.kernel, device_config()
        if not self.is_reduction or self.geometry.threads_per_row != 0 or device.vector == 1 or kernel.is_heavy:
            return False
        loops = [n for n, phase in enumerate(kernel.phases) if phase.in_loop]
        x = self.outer[0]
        if loops != [0] or not V.graph.sizevars.statically_known_multiple_of(x.numel, device.vector):
            return False
        loop = kernel.phases[0]
        return any(kernel.is_vectorized(x, a) for a in [*loop.loads, *filter(kernel.is_live, loop.stores)])

    def _width(self) -> int:
        """Elements a thread takes at once: 4 where that makes an access wide, 1 otherwise."""
        kernel, device = self.kernel, device_config()
        if device.vector == 1 or kernel.is_heavy or (self.is_reduction and self.geometry.threads_per_row == 0):
            return 1
        is_whole = V.graph.sizevars.statically_known_multiple_of(self.tree.numel, device.vector)
        if not is_whole and not (self.is_reduction and self._is_long(self.tree.numel)):
            return 1
        phases = [p for p in kernel.phases if p.in_loop or not self.is_reduction]
        stores = [s for p in phases for s in p.stores if kernel.is_live(s)]
        loads = [x for p in phases for x in p.loads]
        if not self.is_reduction and not all(kernel.is_vectorized(self.tree, s) for s in stores):
            return 1
        return device.vector if any(kernel.is_vectorized(self.tree, a) for a in [*stores, *loads]) else 1

    def _is_long(self, size) -> bool:
        """Whether a thread has more elements of a row than it keeps in registers."""
        most = MAX_PERSISTENT_ELEMENTS * self.geometry.step
        return self.kernel.partial_sums is None and isinstance(size, sympy.Integer) and int(size) > most

    # --- text

    def text(self, part: int | None = None) -> str:
        """A module, or with a number the function that is that part of a kernel (combo.py)."""
        kernel, code = self.kernel, self.code
        if part is None:
            code.writeline("import lib.inductor;")
        declare_arguments(code, kernel, self.trees, self.index, self.tiled, part)
        with code.indent():
            if self.is_reduction:
                by_columns = "" if kernel.partial_sums else "  // 0: by columns"
                code.writeline(f"static const uint kThreadsPerRow = {self.geometry.threads_per_row};{by_columns}")
                if kernel.partial_sums is None:
                    code.writeline(f"static const uint kColumns = {self.geometry.columns};")
            if kernel.partial_sums is not None:
                self._walk_rows()
            else:
                self._position()
                self._row_phases() if self.is_reduction else self._pointwise()
        code.writeline("}")
        return code.getvalue()

    def _row_phases(self) -> None:
        kernel = self.kernel
        self.code.writelines(kernel.row_indexing)
        if not self.by_columns:
            self._load_row_values()
        self._declare_persistent()
        if self.by_columns:
            self._columns(kernel.phases)
            return
        for phase in kernel.phases:
            self._loop(phase) if phase.in_loop else self._once(phase)

    def _row_count(self) -> str:
        return " * ".join(f"{t.prefix}numel" for t in self.outer) or f"{self.index}(1)"

    def _position(self) -> None:
        """Which rows, or elements, are the thread's."""
        code, index = self.code, self.index
        geometry = self.geometry
        if self.tiled:
            code.writeline(f"let tiles = (xnumel + {TILE - 1}) / {TILE};")
            code.writeline(f"let tile = {index}(group);")
            code.writeline(f"let column = tile % tiles * {TILE} + {index}(thread_index() % {TILE});")
            lines = geometry.workgroup // TILE
            code.writeline(
                f"let position = (tile / tiles * {lines} + {index}(thread_index() / {TILE})) * {self.width};"
            )
            code.writeline("if (column >= xnumel || position >= ynumel)")
            code.writeline("    return;")
            return
        code.writeline(f"let total = {self._row_count()};")
        if not self.is_reduction:
            thread = f"{index}(group) * {geometry.workgroup} + {index}(thread_index())"
            code.writeline(f"let position = ({thread}) * {self.width};")
            code.writeline("if (position >= total)")
            code.writeline("    return;")
            return
        if geometry.threads_per_row:
            row, lane = f"thread_index() / {geometry.threads_per_row}", f"thread_index() % {geometry.threads_per_row}"
        else:
            row, lane = f"thread_index() % {geometry.columns}", f"thread_index() / {geometry.columns}"
        each = self.width if self.by_columns else 1
        own_row = f"{index}(group) * {geometry.rows} + {index}({row})"
        code.writeline(f"let own_row = {f'({own_row}) * {each}' if each > 1 else own_row};")
        code.writeline("let inside = own_row < total;")
        code.writeline(f"let position = min(own_row, total - {each});")
        code.writeline(f"let lane = {index}({lane});")
        code.writeline("let first = inside && lane == 0;")
        self._outer_indices("position")

    def _outer_indices(self, position: str) -> None:
        if self.tiled:
            self.code.writeline("let xindex = column;")
            self.code.writeline(f"let yindex = {position};")
            return
        rest = position
        for n, tree in enumerate(self.outer):
            if n + 1 == len(self.outer):
                self.code.writeline(f"let {tree.name} = {rest};")
            else:
                self.code.writeline(f"let {tree.name} = {rest} % {tree.prefix}numel;")
                self.code.writeline(f"let rest{n} = {rest} / {tree.prefix}numel;")
                rest = f"rest{n}"

    def _pointwise(self) -> None:
        kernel, code = self.kernel, self.code
        body = kernel.phases
        self._outer_indices("position")
        for line in kernel.row_indexing:
            code.writeline(line)
        if self.width == 1:
            for phase in body:
                self._elements(phase)
            return
        self._vectorized(body, f"(position + {self.index}(j))", kernel.row_indexing, outer=True)

    def _elements(self, phase, guard: str = "") -> None:
        for load in phase.loads:
            self.code.writeline(f"let {load.var} = {self._load(load, self.in_registers.get(load.key))};")
        self.code.writelines(self._compute(phase))
        for store in filter(self.kernel.is_live, phase.stores):
            self.code.writeline(f"{guard}{self._store(store)}")

    def _vectorized(self, phases: list, position: str, indexing: list[str], outer: bool, guard: str = "") -> None:
        """Loads of four elements, a loop over them, stores of four elements."""
        kernel, code, tree = self.kernel, self.code, self.tree_of_vectors
        inside, after = [], []
        for phase in phases:
            for load in phase.loads:
                kept = self.in_registers.get(load.key)
                if kernel.is_vectorized(tree, load):
                    code.writeline(f"let vec_{load.var} = {self._load(load, kept)};")
                    inside.append((phase, f"let {load.var} = vec_{load.var}[j];"))
                elif kernel.is_broadcast(tree, load):
                    code.writeline(f"let {load.var} = {self._load(load, kept)};")
                else:
                    inside.append((phase, f"let {load.var} = {self._load(load)};"))
            for store in filter(kernel.is_live, phase.stores):
                if kernel.is_vectorized(tree, store):
                    name = f"out{next(kernel.ids)}"
                    code.writeline(f"{vector_type(store.dtype)} {name};")
                    after.append((store, name))
        names = {id(store): name for store, name in after}
        code.writeline("[ForceUnroll]")
        code.writeline(f"for (int j = 0; j < {self.width}; ++j)")
        code.writeline("{")
        with code.indent():
            if outer:
                self._outer_indices(position)
            else:
                code.writeline(f"let {self.tree.name} = {position};")
            code.writelines(indexing)
            for phase in phases:
                code.writelines([line for owner, line in inside if owner is phase])
                code.writelines(self._compute(phase))
                for store in filter(kernel.is_live, phase.stores):
                    name = names.get(id(store))
                    code.writeline(f"{name}[j] = {store.value};" if name else f"{guard}{self._store(store)}")
        code.writeline("}")
        for store, name in after:
            code.writeline(f"{guard}store4({store.pointer}, {self.kernel.kexpr(store.index)}, {name});")

    def _compute(self, phase) -> list[str]:
        """The lines of a phase, of which some are values that an earlier loop has kept."""
        lines = self.reused.lines(phase, self.width) if self.persistent and phase.in_loop else phase.compute
        if self.width > 1 and not self.by_columns:
            moments = [f"{match[1]}.add(" for text in phase.prologue if (match := re.match(r"Welford (acc\d+)", text))]
            lines = [f"{line[:-2]}, j);" if line.startswith(tuple(moments)) else line for line in lines]
        if self.kernel.partial_sums is not None and self.width > 1:
            return [re.sub(r"\b(columns\d+\[n\])", r"\1[j]", line) for line in lines]
        return [_of_column(line) for line in lines] if self.by_columns and phase.in_loop else lines

    def _load(self, load, kept: str | None = None) -> str:
        if kept is not None:
            return kept
        vectorized = self.width > 1 and self.kernel.is_vectorized(self.tree_of_vectors, load)
        return f"{'load4' if vectorized else 'load'}({load.pointer}, {self.kernel.kexpr(load.index)})"

    def _store(self, store) -> str:
        return f"store({store.pointer}, {self.kernel.kexpr(store.index)}, {store.value});"

    # --- loops over a row

    def _loop(self, phase) -> None:
        code, tree, geometry = self.code, self.tree, self.geometry
        step = geometry.step * self.row_width
        code.writelines([line for text in phase.prologue for line in self._accumulators(text)])
        if phase.indexing or phase.loads or phase.compute or phase.stores:
            name = f"{tree.prefix}base"
            whole = self.persistent and int(tree.numel) == self.persistent * step
            if not self.persistent:
                self._long_loop(phase, name, step)
            else:
                code.writeline("[ForceUnroll]")
                code.writeline(f"for (int n = 0; n < {self.persistent}; ++n)")
                code.writeline("{")
                with code.indent():
                    code.writeline(f"let {name} = lane * {self.row_width} + {self.index}(n) * {step};")
                    if not whole:
                        code.writeline(f"if ({name} < {tree.prefix}numel)")
                        code.writeline("{")
                    self._row_elements(phase, name)
                    if not whole:
                        code.writeline("}")
                code.writeline("}")
        if not self.by_columns:
            code.writelines(phase.epilogue)
            self._row_stores(phase)

    def _columns(self, phases: list) -> None:
        """The loop of four neighbouring columns, and for each of them its end and what follows."""
        code, (loop, *rest) = self.code, phases
        self._loop(loop)
        code.writeline("[ForceUnroll]")
        code.writeline(f"for (int j = 0; j < {self.width}; ++j)")
        code.writeline("{")
        with code.indent():
            self._outer_indices(f"(position + {self.index}(j))")
            code.writelines(self.kernel.row_indexing)
            code.writelines([_of_column(line) for line in loop.epilogue])
            self._row_stores(loop)
            for phase in rest:
                self._once(phase)
        code.writeline("}")

    def _accumulators(self, declaration: str) -> list[str]:
        """The lines that declare an accumulator, or one a column."""
        if not self.by_columns:
            return [declaration]
        kind, name, value = re.fullmatch(r"(.*) (acc\d+) = (.*);", declaration).groups()
        columns = range(self.width)
        return [f"{kind} {name}[{self.width}];", *(f"{name}[{j}] = {value};" for j in columns)]

    def _row_elements(self, phase, name: str, loaded: dict | None = None) -> None:
        """Elements from a place of a row on. loaded: where values are that were read before, by Load.key."""
        code, tree = self.code, self.tree
        code.writeline(f"let {tree.name} = {name};")
        code.writelines(phase.indexing)
        self.in_registers = self.of_rows | (loaded or {})
        for load in phase.loads:
            if self.persistent and (keep := self.row_arrays.get(load.key)) is not None:
                if not keep[1]:
                    code.writeline(f"{keep[0]}[n] = {self._load(load)};")
                    keep[1] = True
                self.in_registers[load.key] = f"{keep[0]}[n]"
        guard = "if (inside) "
        if self.by_columns:
            indexing = [*self.kernel.row_indexing, *phase.indexing]
            self._vectorized([phase], f"(position + {self.index}(j))", indexing, outer=True, guard=guard)
        elif self.width > 1:
            self._vectorized([phase], f"{name} + {self.index}(j)", phase.indexing, outer=False, guard=guard)
        else:
            self._elements(phase, guard)

    def _once(self, phase) -> None:
        """What a row needs between its loops: every thread of it computes it, the first one stores it."""
        for load in phase.loads:
            text = f"load({load.pointer}, {self.kernel.kexpr(load.index)})" if self.by_columns else self._load(load)
            self.code.writeline(f"let {load.var} = {text};")
        self.code.writelines(phase.compute)
        self.code.writelines(phase.epilogue)
        self._row_stores(phase)

    def _row_stores(self, phase) -> None:
        for store in filter(self.kernel.is_live, phase.row_stores):
            self.code.writeline(f"if (first) {self._store(store)}")


def _of_column(line: str) -> str:
    """A line of a loop, or of its end, with the accumulators of column j."""
    return re.sub(r"\b(acc\d+)\b", r"\1[j]", line)
