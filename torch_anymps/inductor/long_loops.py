"""Loops over rows that are read by each loop: several loads of a thread are under way before it uses the first."""

from __future__ import annotations

import sympy
from torch._inductor.virtualized import V

from .access import vector_type
from .device import device_config
from .dtypes import REGISTER
from .geometry import MAX_REPEATED_LINES, power_of_two

# Terms that a thread adds to a sum before it adds their sum to the others: blocked summation, whose error grows with
# this and with the number of blocks, not with their product (N. J. Higham, "The accuracy of floating point
# summation", 1993).
SUM_BLOCK = 128


class LongLoops:
    """The part of a LoopWriter that writes them."""

    def _long_loop(self, phase, name: str, step: int) -> None:
        code, size = self.code, f"{self.tree.prefix}numel"
        if self.ragged:
            size = f"({size} - {self.width - 1})"
        iterations = V.graph.sizevars.optimization_hint(self.tree.numel, fallback=4096) // step
        copies = self._loads_under_way(phase, iterations)
        code.writeline("{")
        with code.indent():
            code.writeline(f"{self.index} {name} = lane * {self.row_width};")
            is_short = isinstance(self.tree.numel, sympy.Integer) and iterations < 2 * SUM_BLOCK
            if is_short or not phase.sums:
                self._iterations(phase, name, size, step, copies)
            else:
                code.writeline(f"while ({name} < {size})")
                code.writeline("{")
                with code.indent():
                    self._block_of_sums(phase, name, size, step, copies)
                code.writeline("}")
            if self.ragged:
                self._last_elements(phase, name)
        code.writeline("}")

    def _last_elements(self, phase, name: str) -> None:
        """Those behind the last whole vector, of the thread whose turn they are."""
        self.code.writeline(f"for (; {name} < {self.tree.prefix}numel; {name} += 1)")
        self.code.writeline("{")
        width, self.width = self.width, 1
        with self.code.indent():
            self._row_elements(phase, name)
        self.width = width
        self.code.writeline("}")

    def _block_of_sums(self, phase, name: str, size: str, step: int, copies: int) -> None:
        code = self.code
        code.writeline(f"let block_end = min({size}, {name} + {SUM_BLOCK * step});")
        kind = f"float[{self.width}]" if self.by_columns else "float"
        columns = [f"[{j}]" for j in range(self.width)] if self.by_columns else [""]
        for acc in phase.sums:
            code.writeline(f"{kind} before_{acc} = {acc};")
            code.writelines([f"{acc}{j} = 0.0;" for j in columns])
        self._iterations(phase, name, "block_end", step, copies)
        for acc in phase.sums:
            code.writelines([f"{acc}{j} += before_{acc}{j};" for j in columns])

    def _iterations(self, phase, name: str, end: str, step: int, copies: int) -> None:
        code = self.code
        if copies > 1:
            code.writeline(f"for (; {name} < {end} - {(copies - 1) * step}; {name} += {copies * step})")
            code.writeline("{")
            with code.indent():
                self._several_elements(phase, f"{name} + {self.index}(n) * {step}", copies)
            code.writeline("}")
        code.writeline(f"for (; {name} < {end}; {name} += {step})")
        code.writeline("{")
        with code.indent():
            self._row_elements(phase, name)
        code.writeline("}")

    def _loads_under_way(self, phase, iterations: int) -> int:
        """Iterations of a loop that are done at once."""
        device, kernel = device_config(), self.kernel
        if device.software or kernel.is_heavy or not phase.loads:
            return 1
        lines = max(len(phase.compute) + len(phase.loads), 1) * self.width
        most = 8 if self.width == 1 else 4
        return min(power_of_two(MAX_REPEATED_LINES // lines), most, power_of_two(iterations))

    def _several_elements(self, phase, position: str, copies: int) -> None:
        code, kernel, along = self.code, self.kernel, self.tree_of_vectors
        wide = {id(x): self.width > 1 and kernel.is_vectorized(along, x) for x in phase.loads}
        ahead = [
            load
            for load in phase.loads
            if load.pointer not in self.written
            and load.key not in self.of_rows
            and (self.width == 1 or wide[id(load)] or kernel.is_broadcast(along, load))
        ]
        for load in ahead:
            kind = vector_type(load.dtype) if wide[id(load)] else REGISTER[load.dtype]
            code.writeline(f"{kind} next_{load.var}[{copies}];")
        loop = ("[ForceUnroll]", f"for (int n = 0; n < {copies}; ++n)", "{")
        code.writelines(loop)
        with code.indent():
            code.writeline(f"let {self.tree.name} = {position};")
            code.writelines(phase.indexing)
            for load in ahead:
                code.writeline(f"next_{load.var}[n] = {self._load(load)};")
        code.writeline("}")
        code.writelines(loop)
        with code.indent():
            self._row_elements(phase, f"({position})", {load.key: f"next_{load.var}[n]" for load in ahead})
        code.writeline("}")
