"""How the threads of a generated kernel share its elements."""

from __future__ import annotations

from dataclasses import dataclass

from torch._inductor.virtualized import V

from .device import device_config

# Loads of a thread that keep a row in registers, the elements they keep, and lines of a loop's body times its copies
# that are worth it.
MAX_PERSISTENT_LOADS = 8
MAX_PERSISTENT_ELEMENTS = 32
MAX_UNROLLED_LINES = 2000
# Registers of a thread that hold no element: addresses of 64 bits, accumulators, what a store is made of.
OTHER_REGISTERS = 40
# Lines of the body of a loop over a long row, times its copies that read ahead of their use.
MAX_REPEATED_LINES = 160


@dataclass(frozen=True)
class Geometry:
    """Threads of a workgroup, and of them those of a row.

    threads_per_row: neighbours that share a row, a power of two up to a subgroup or the whole workgroup; 0: columns.
    columns: with threads_per_row 0, neighbours that have a row each; the rest of the workgroup shares their elements.
    """

    workgroup: int
    threads_per_row: int = 1
    columns: int = 1

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.workgroup // self.threads_per_row if self.threads_per_row else self.columns

    @property
    def step(self) -> int:
        """Threads that share a row."""
        return self.threads_per_row or self.workgroup // self.columns


def power_of_two(n: int) -> int:
    """The largest one that is at most n; at least 1."""
    return 1 << max(int(n).bit_length() - 1, 0)


def pointwise_geometry() -> Geometry:
    return Geometry(device_config().workgroup)


@dataclass(frozen=True)
class RowHints:
    """How many rows a kernel reduces, and their elements, as far as that is known."""

    rows: int
    size: int

    @staticmethod
    def of(kernel) -> RowHints:
        hint = V.graph.sizevars.optimization_hint
        numbers = (kernel.features.numel, kernel.features.reduction_numel)
        return RowHints(*(hint(number, fallback=1024) for number in numbers))


def reduction_geometry(kernel, tree, hints: RowHints) -> Geometry:
    """For rows along what is contiguous, or columns where neighbours in memory belong to different rows."""
    device = device_config()
    rows, size = hints.rows, hints.size
    outer = _is_outer(kernel, tree)
    if device.software:
        # A workgroup is a subgroup there: rows that are short or strided go to one lane each.
        alone = (outer or size < device.subgroup) and rows >= device.subgroup
        return Geometry(device.workgroup, 1 if alone else device.subgroup)
    if outer:
        return _columns(device, rows, size)
    loads = max(size // device.vector, 1)
    fill = 4 * device.compute_units * device.workgroup  # threads that keep the device busy
    most = min(MAX_PERSISTENT_LOADS, device.registers // 16)
    if loads <= device.subgroup * most and rows * min(loads, device.subgroup) >= fill // 4:
        return Geometry(device.workgroup, min(power_of_two(2 * loads - 1), device.subgroup))
    if loads <= device.subgroup // 2:
        return Geometry(device.workgroup, power_of_two(2 * loads - 1))
    return Geometry(device.workgroup, device.workgroup)


def column_geometry(hints: RowHints, width: int) -> Geometry:
    """For columns of which a thread takes `width` neighbours."""
    return _columns(device_config(), max(hints.rows // width, 1), hints.size)


def _is_outer(kernel, tree) -> bool:
    """Whether more of what a loop reads and writes is scattered along the rows than across them."""
    loops = [phase for phase in kernel.phases if phase.in_loop]
    accesses = [access.index for phase in loops for access in [*phase.loads, *phase.stores]]
    indices = accesses + [index for phase in loops for index in phase.masked_reads]
    across = min((t for t in kernel.range_trees if not t.is_reduction), key=lambda t: t.prefix)
    along_rows, across_rows = (sum(kernel.step_along(t, i) not in (0, 1) for i in indices) for t in (tree, across))
    return along_rows > across_rows


def _columns(device, rows: int, size: int) -> Geometry:
    if rows >= 8 * device.compute_units * device.workgroup or size < 8:
        return Geometry(device.workgroup, 0, device.workgroup)
    if rows < device.subgroup:
        return Geometry(device.workgroup, 0, power_of_two(rows))
    return Geometry(device.workgroup, 0, device.subgroup)
