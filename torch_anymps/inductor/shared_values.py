"""Values that more than one loop over a row computes: kept in registers where the row is."""

from __future__ import annotations

import re

_DEFINITION = re.compile(r"let (\w+) = (.*);")
_NAME = re.compile(r"\btmp\w+\b")
_COSTLY = re.compile(r"\b(?:m|fast)::(?:exp|log|tanh|sigmoid|pow|erf|sin|cos|rsqrt|sqrt|ndtr)\w*\(")
MAX_KEPT = 2  # arrays of registers


class SharedValues:
    """Finds equal expressions of different loops by value numbering, and rewrites the later ones.

    A name in the text of a loop stands for a load, an expression of the same loop, or something outside of all loops.
    """

    def __init__(self, writer) -> None:
        """writer: a LoopWriter. What is the same for a whole row is not kept: compilers move it out of the loops."""
        self.keeps: dict[str, str] = {}  # a variable -> the array that keeps it
        self.uses: dict[str, str] = {}  # a variable of a later loop -> the array that has its value
        first: dict[str, str] = {}  # a costly expression in terms of values -> the variable that had it first
        of_elements = re.compile(rf"\b{writer.tree.prefix}")
        for phase in (p for p in writer.kernel.phases if p.in_loop):
            values = {load.var: f"<{load.pointer} {load.index}>" for load in phase.loads}
            differ = {load.var for load in phase.loads if not writer.is_of_row(load.index)}
            for line in phase.compute:
                match = _DEFINITION.fullmatch(line)  # not those that are indented: a condition decides about them
                if match is None:
                    continue
                name, text = match.groups()
                values[name] = _NAME.sub(lambda m, v=values: f"({v[m[0]]})" if m[0] in v else m[0], text)
                if of_elements.search(text) or differ.intersection(_NAME.findall(text)):
                    differ.add(name)
                if name not in differ or not _COSTLY.search(text) or len(values[name]) > 2000:
                    continue
                other = first.setdefault(values[name], name)
                if other != name and (other in self.keeps or len(self.keeps) < MAX_KEPT):
                    self.uses[name] = self.keeps.setdefault(other, f"kept_{other}")

    def declarations(self, width: int, iterations: int) -> list[str]:
        kind = f"float{width}" if width > 1 else "float"
        return [f"{kind} {array}[{iterations}];" for array in self.keeps.values()]

    def lines(self, phase, width: int) -> list[str]:
        at = "[n][j]" if width > 1 else "[n]"
        result = []
        for line in phase.compute:
            match = _DEFINITION.fullmatch(line)
            name = match[1] if match else None
            if name in self.uses:
                result.append(f"let {name} = {self.uses[name]}{at};")
                continue
            result.append(line)
            if name in self.keeps:
                result.append(f"{self.keeps[name]}{at} = {name};")
        return result
