"""Row and column reductions of the same tensors as one kernel, which reads them once: the gradients of norms.

Inductor's name is mix order reduction. Its scheduler finds the pairs; which of them pay here, and what the kernels are,
is decided in this file. A column reduction must have been split in two: the first part joins the kernel of the rows,
whose workgroups take its place, the second part adds up what each of them leaves, and keeps what was fused with it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import sympy
import torch
from torch._inductor import config, ir, metrics
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import ForeachKernelSchedulerNode, FusedMixOrderReductions, MixOrderReduction
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from .access import vector_type
from .device import device_config, on_mps
from .dtypes import REGISTER
from .geometry import Geometry, power_of_two

# Registers of a thread for its part of a row and of the columns' sums: with these, two workgroups share a core's. At
# most half of what a thread has.
GOOD_REGISTERS = 80
GROUPS_PER_COMPUTE_UNIT = 2
# A workgroup writes one partial sum a column, which is read again: that has to be little beside what it spares.
MIN_ROWS_PER_GROUP = 8
# Smaller tensors are in the cache when the second kernel reads them.
MIN_ELEMENTS = 1 << 20


@dataclass
class PartialSums:
    """Of a kernel over rows: the sums of columns that it leaves, a partial one for each of its workgroups."""

    groups: int
    geometry: Geometry
    pointers: list[str] = field(default_factory=list)  # [groups, columns], float32


def team_geometry(columns: int, values: int) -> Geometry | None:
    """As few threads a row as have the registers for it, a subgroup where there is work for one; None: none have them.

    values: numbers of an element that are kept, those of the columns' sums among them.
    """
    device = device_config()
    width = device.vector if columns % device.vector == 0 else 1
    threads = min(device.subgroup, power_of_two(2 * -(-columns // width) - 1))
    most = (device.registers + 1) // 2
    while threads < device.workgroup and _registers(columns, values, width, threads) > min(GOOD_REGISTERS, most):
        threads *= 2
    fits = _registers(columns, values, width, threads) <= most
    return Geometry(device.workgroup, threads) if fits else None


def _registers(columns: int, values: int, width: int, threads: int) -> int:
    return values * width * -(-columns // (width * threads))


def group_count(rows: int, geometry: Geometry) -> int:
    """Workgroups that keep the device busy, all of which have as many rows, or almost."""
    most = GROUPS_PER_COMPUTE_UNIT * device_config().compute_units * geometry.rows
    return max(-(-rows // (geometry.rows * -(-rows // most))), 1)


# --- which nodes


def _pays(rows_node, columns_node) -> bool:
    """Whether one kernel of these two is possible, and faster."""
    if rows_node.ancestors & columns_node.get_operation_names():
        return False
    if columns_node.ancestors & rows_node.get_operation_names() or MixOrderReduction.is_split_reduction(rows_node):
        return False
    if not all(_is_partial_sum(node) for node in columns_node.get_nodes()):
        return False
    rows, columns = MixOrderReduction.get_numel_rnumel(rows_node)
    if not isinstance(columns, sympy.Integer) or not MixOrderReduction.get_common_read(rows_node, columns_node):
        return False
    if team_geometry(int(columns), _values_of([rows_node, columns_node])) is None:
        return False
    least = max(
        MIN_ROWS_PER_GROUP * GROUPS_PER_COMPUTE_UNIT * device_config().compute_units, MIN_ELEMENTS // int(columns)
    )
    return V.graph.sizevars.evaluate_expr(sympy.Ge(rows, least), size_oblivious=True, fallback_value=False)


def _is_partial_sum(node) -> bool:
    """Whether a node is the first part of a sum of columns."""
    buffer = node.node
    if not isinstance(buffer, ir.ComputedBuffer) or not MixOrderReduction.is_split_reduction(node):
        return False
    ranges = [n for n in buffer._original_ranges if n != 1]
    return buffer.get_reduction_type() == "sum" and buffer.get_dtype() == torch.float32 and len(ranges) == 1


def _is_of_one_size(node) -> bool:
    """Whether the split reductions of a node were of one size before they were split."""
    buffers = [n.node for n in node.get_nodes() if MixOrderReduction.is_split_reduction(n)]
    sizes = {tuple(map(sympy_product, (b._original_ranges, b._original_reduction_ranges))) for b in buffers}
    return len(sizes) <= 1


def _values_of(nodes) -> int:
    """Numbers that a kernel of these nodes keeps of each element."""
    found = [n for node in nodes for n in node.get_nodes()]
    reads = {dep.name for n in found for dep in n.read_writes.reads if isinstance(dep, MemoryDep) and dep.index != 0}
    rows = MixOrderReduction.get_numel_rnumel(nodes[0])[0]
    whole = [name for name in reads if V.graph.get_numel(name) != rows]  # not one number a row
    return len(whole) + sum(1 for n in found if MixOrderReduction.is_split_reduction(n))


def can_fuse(original):
    """Wraps MixOrderReduction.can_fuse, which is about Triton's kernels."""

    def can_fuse_mix_order(cls, node1, node2, *args, **kwargs) -> bool:
        if not on_mps(node1, node2):
            return original(node1, node2, *args, **kwargs)
        if not config.triton.mix_order_reduction or device_config().software:
            return False
        if not (node1.is_reduction() and node2.is_reduction()):
            return False
        if not (_is_of_one_size(node1) and _is_of_one_size(node2)):
            return False
        numels, others = cls.get_numel_rnumel(node1), cls.get_numel_rnumel(node2)
        if len(numels) != 2 or tuple(numels) != tuple(reversed(others)):
            return False
        for rows_node, columns_node in ((node1, node2), (node2, node1)):
            if cls.is_contiguous_node(rows_node) and not cls.is_contiguous_node(columns_node):
                return _pays(rows_node, columns_node)
        return False

    return classmethod(can_fuse_mix_order)


def sub_node_can_fuse(original):
    """Wraps FusedMixOrderReductions.sub_node_can_fuse: what joins the columns are sums, too, and registers are few."""

    @functools.wraps(original)
    def can_join(self, node1, node2, *args, **kwargs) -> bool:
        if on_mps(node1):
            sums = all(_is_partial_sum(node) for node in node2.get_nodes())
            if node1 is self.node2 and (not sums or MixOrderReduction.is_contiguous_node(node2)):
                return False
            columns = int(MixOrderReduction.get_numel_rnumel(self.node1)[1])
            if team_geometry(columns, _values_of([self.node1, self.node2, node2])) is None:
                return False
        return original(self, node1, node2, *args, **kwargs)

    return can_join


def can_fuse_with(original):
    """Wraps FusedMixOrderReductions.can_fuse_with, whose limit is on reads, of whatever size: ours is on registers."""

    @functools.wraps(original)
    def can_join(self, *args, **kwargs) -> bool:
        if not on_mps(self):
            return original(self, *args, **kwargs)
        with config.patch({"triton.mix_order_reduction_max_reads": 0}):
            return original(self, *args, **kwargs)

    return can_join


def install() -> None:
    FusedMixOrderReductions.can_fuse_with = can_fuse_with(FusedMixOrderReductions.can_fuse_with)
    MixOrderReduction.can_fuse = can_fuse(MixOrderReduction.can_fuse)
    FusedMixOrderReductions.sub_node_can_fuse = sub_node_can_fuse(FusedMixOrderReductions.sub_node_can_fuse)


# --- the kernel


def generate(scheduling, node: FusedMixOrderReductions) -> None:
    """Writes the kernel of a pair of nodes and its call, or two kernels where second parts cannot be adapted to it."""
    rows_node, column_nodes = node.node1, list(node.node2.get_nodes())
    rows, columns = MixOrderReduction.get_numel_rnumel(rows_node)
    geometry = team_geometry(int(columns), _values_of([rows_node, node.node2]))
    seconds = [_second_part(n) for n in column_nodes]
    kernels = _kernels_of(scheduling.scheduler, seconds)
    if kernels is None or geometry is None:  # pairs of pairs may have grown too large
        _generate_both(scheduling, rows_node, node.node2)
        return
    metrics.codegen_mix_order_reduction += 1
    groups = group_count(V.graph.sizevars.optimization_hint(rows, fallback=1 << 14), geometry)
    for first, second in zip(column_nodes, seconds):
        _set_part_count(first, second, groups)
        first.cancel_reduction_split()
        first.extract_pw_from_reduction().swap_pw_red_dimension()
    for fused in kernels:
        fused.group = max(fused.get_nodes(), key=lambda n: int(n.is_reduction())).group
    schedule = scheduling.generate_node_schedule([*rows_node.get_nodes(), *column_nodes], rows, columns)
    features = SIMDKernelFeatures(schedule, rows, columns)
    kernel = scheduling.kernel_type({"x": rows, "r0_": columns}, features=features)
    kernel.partial_sums = PartialSums(groups, geometry)
    scheduling.process_kernel(kernel, schedule)
    with V.set_kernel_handler(kernel):
        name = scheduling.define_kernel(kernel.codegen_kernel(), schedule, kernel)
        scheduling.codegen_comment(schedule, name)
        kernel.call_kernel(name)
        if config.nan_asserts:
            kernel.codegen_nan_check()
    scheduling.free_buffers_in_scheduler()


def _generate_both(scheduling, rows_node, columns_node) -> None:
    """Writes two kernels; what the pair reads last stays until the second one has read it."""
    scheduler = scheduling.scheduler
    read_last, scheduler.buffer_names_to_free = scheduler.buffer_names_to_free, OrderedSet()
    scheduling.codegen_node(rows_node)
    scheduler.buffer_names_to_free |= read_last
    scheduling.codegen_node(columns_node)


def _second_part(node):
    """The node that adds up the results of the first part of a split sum; None where others read them, too."""
    [output] = node.get_outputs()
    if len(output.users) != 1:
        return None
    second = output.users[0].node
    buffer = getattr(second, "node", None)
    if not isinstance(buffer, ir.ComputedBuffer) or not isinstance(buffer.data, ir.Reduction):
        return None
    whole = list(buffer.data.ranges) + list(buffer.data.reduction_ranges) == list(node.node.get_size())
    return second if whole and buffer._split_size is None and len(second.read_writes.reads) == 1 else None


def _kernels_of(scheduler, seconds: list) -> list | None:
    """The fused nodes that these reductions are part of; None where their length may not change.

    That is so where others of that length are in one kernel with them.
    """
    if None in seconds:
        return None
    found = []
    for node in scheduler.nodes:
        for part in node.get_subkernel_nodes() if isinstance(node, ForeachKernelSchedulerNode) else [node]:
            nodes = part.get_nodes()
            mine = [n for n in nodes if n in seconds]
            if not mine:
                continue
            columns = mine[0].group[1][0]
            if any(n not in mine and n.group[1] != (columns, 1) for n in nodes):
                return None
            found.append(part)
    return found


def _set_part_count(first, second, groups: int) -> None:
    """Gives partial sums the layout [groups, columns], and their sums that many terms."""
    buffer, ranges = first.node, list(first.node._original_ranges)
    columns = sympy_product(ranges)
    strides = [*ir.FlexibleLayout.contiguous_strides(ranges), columns]
    buffer.layout = ir.FixedLayout(buffer.get_device(), buffer.get_dtype(), [*ranges, sympy.Integer(groups)], strides)
    old = second.node.data
    second.node.data = ir.Reduction(
        device=old.device,
        dtype=old.dtype,
        inner_fn=old.inner_fn,
        ranges=old.ranges,
        reduction_ranges=[sympy.Integer(groups)],
        reduction_type=old.reduction_type,
        src_dtype=old.src_dtype,
        reduction_hint=old.reduction_hint,
    )
    second.node.get_default_sizes_body.clear_cache(second.node)
    second.recompute_size_and_body()


# --- its text


class PartialSumLoops:
    """The part of a LoopWriter that writes such kernels."""

    of_all_rows: dict = {}  # Load.key -> the array that has what no row differs in, such as weights

    def _walk_rows(self) -> None:
        """A loop over the rows of a workgroup; what it keeps of the columns is stored after it."""
        kernel, code, index, count = self.kernel, self.code, self.index, self.persistent
        lanes, rows = self.geometry.threads_per_row, self.geometry.rows
        sums = kernel.partial_sums.pointers
        code.writeline(f"let total = {self._row_count()};")
        code.writeline(f"let lane = {index}(thread_index() % {lanes});")
        code.writeline("uint turn = 0;  // of reductions")
        kind = f"float{self.width}" if self.width > 1 else "float"
        for k in range(len(sums)):
            code.writeline(f"{kind} columns{k}[{count}];  // of this thread's rows")
        self._for_each_part([f"columns{k}[n] = {kind}(0.0f);" for k in range(len(sums))])
        self._load_for_all_rows()
        first, step = f"{index}(group) * {rows}", f"group_count * {rows}"
        code.writeline(f"for ({index} begin = {first}; begin < total; begin += {step})")
        code.writeline("{")
        with code.indent():
            code.writeline(f"let own_row = begin + {index}(thread_index() / {lanes});")
            code.writeline("let inside = own_row < total;")
            code.writeline("let position = min(own_row, total - 1);")
            code.writeline("let first = inside && lane == 0;")
            self._outer_indices("position")
            self._row_phases()
        code.writeline("}")
        self._store_partial_sums(sums)

    def _load_for_all_rows(self) -> None:
        """Registers for what every row reads of its columns, loaded once."""
        kernel, code, row = self.kernel, self.code, self.tree.prefix
        found: dict = {}
        for phase in (p for p in kernel.phases if p.in_loop):
            for load in phase.loads:
                entries = [kernel.range_tree_nodes.get(s) for s in load.index.free_symbols]
                of_columns = entries and all(e is not None and e.root is self.tree for e in entries)
                whole = self.width == 1 or kernel.is_vectorized(self.tree, load)
                if of_columns and whole and load.pointer not in self.written:
                    found.setdefault(load.key, (load, phase.indexing))
        self.of_all_rows = {key: f"all_{load.var}" for key, (load, _) in found.items()}
        lines = []
        for key, (load, indexing) in found.items():
            kind = vector_type(load.dtype) if self.width > 1 else REGISTER[load.dtype]
            code.writeline(f"{kind} {self.of_all_rows[key]}[{self.persistent}];")
            lines += [line for line in indexing if line not in lines]
            lines.append(f"{self.of_all_rows[key]}[n] = {self._load(load)};")
        if lines:
            base = f"lane * {self.width} + {self.index}(n) * {self.geometry.threads_per_row * self.width}"
            guarded = [f"let {self.tree.name} = {base};", f"if ({self.tree.name} < {row}numel)", "{"]
            self._for_each_part([*guarded, *(f"    {line}" for line in lines), "}"])

    def _store_partial_sums(self, pointers: list[str]) -> None:
        """Adds up what the teams of the workgroup have of each column; the first team stores it."""
        lanes, row, base = self.geometry.threads_per_row, self.tree.prefix, f"{self.tree.prefix}base"
        combine = "Sum4" if self.width > 1 else "Sum<float>"
        at = f"{self.index}(group) * {row}numel + {base}"
        self._for_each_part(
            [
                f"let {base} = lane * {self.width} + {self.index}(n) * {lanes * self.width};",
                *(f"let sum{k} = column_reduce<{combine}>(columns{k}[n], {lanes});" for k in range(len(pointers))),
                f"if (thread_index() < {lanes} && {base} < {row}numel)",
                "{",
                *(
                    f"    {'store4' if self.width > 1 else 'store'}({pointer}, {at}, sum{k});"
                    for k, pointer in enumerate(pointers)
                ),
                "}",
            ]
        )

    def _for_each_part(self, lines: list[str]) -> None:
        """Lines about every n-th part of a row that a thread keeps."""
        self.code.writelines(["[ForceUnroll]", f"for (int n = 0; n < {self.persistent}; ++n)", "{"])
        with self.code.indent():
            self.code.writelines(lines)
        self.code.writeline("}")
