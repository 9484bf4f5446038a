"""Independent kernels as parts of one (torch._inductor.config.combo_kernels): a workgroup belongs to one of them."""

from __future__ import annotations

import math

from torch._inductor import config
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.scheduler import FusedMixOrderReductions, FusedSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V

from .arguments import declare_entry, fields_of
from .defaults import set_default
from .device import on_mps
from .kernel import SlangKernel, write_call

# Of one kernel, as csrc/python/launcher.cpp takes them: tensors, numbers, and where parts begin.
MAX_ARGUMENTS = 64
# Bytes that a part reads and writes. A dispatch costs about what a GPU moves in a microsecond or two; larger parts
# would gain nothing, and share registers and shared memory with others for it.
MAX_PART_BYTES = 2 << 20


class ComboKernel:
    """One kernel of several, whose text is known."""

    def __init__(self, parts: list[SlangKernel]):
        self.parts = parts
        self.messages = [message for part in parts for message in part.messages]
        self.fields = [fields_of(part, part.active_range_trees(), part.tiled) for part in parts]

    @staticmethod
    def takes(kernel: SlangKernel) -> bool:
        """Kernels that transpose have other workgroups."""
        return not kernel.tiled

    @staticmethod
    def numbers_of(kernel: SlangKernel) -> int:
        """With the end of the part, without what errors are reported to."""
        return len(kernel.numbers) + len(kernel.active_range_trees()) + 1

    @staticmethod
    def arguments_of(kernel: SlangKernel) -> int:
        return len(kernel.tensors) + ComboKernel.numbers_of(kernel) + 2 * len(kernel.messages)

    def text(self) -> str:
        code = IndentedBuffer()
        code.writeline("import lib.inductor;")
        for number, part in enumerate(self.parts):
            code.splice(part.text_as_part(number))
        named = [
            [[(kind, f"part{i}_{name}") for kind, name in group] for group in groups]
            for i, groups in enumerate(self.fields)
        ]
        tensors, numbers, errors = ([field for groups in named for field in groups[kind]] for kind in range(3))
        ends = [("int64_t", f"end{i}") for i in range(len(self.parts))]
        access = declare_entry(code, [*tensors, *numbers, *ends, *errors])
        with code.indent():
            code.writeline("let group = group_index();")
            for i, groups in enumerate(named):
                values = ", ".join(f"args{access}{name}" for group in groups for _, name in group)
                first = f"group - uint(args{access}end{i - 1})" if i else "group"
                code.writeline(f"{'else ' if i else ''}if (group < uint(args{access}end{i}))")
                code.writeline("{")
                code.writeline(f"    Args{i} part = {{ {values} }};")
                code.writeline(f"    part{i}(part, {first});")
                code.writeline("}")
        code.writeline("}")
        return code.getvalue()

    def launch_config(self) -> tuple:
        """As SlangKernel's; the last number is that of workgroups."""
        written = [yes for part in self.parts for yes in part.written()]
        numbers = sum(map(self.numbers_of, self.parts))
        mask = sum(1 << i for i, yes in enumerate(written) if yes)
        return len(written), mask, numbers, (numbers - 1,), 1

    def call_kernel(self, name: str) -> None:
        tensors: list[str] = []
        numbers: list[str] = []
        ends: list[str] = []
        kinds: list = []
        known, unknown = 0, []  # workgroups of parts whose sizes are, and are not
        for i, part in enumerate(self.parts):
            of_part, sizes, kinds_of_part = part.call_arguments(f"{name}_{i}")
            tensors += of_part
            numbers += sizes
            kinds += kinds_of_part
            trees = part.active_range_trees()
            rows = [n for n, tree in zip(sizes[len(sizes) - len(trees) :], trees) if not tree.is_reduction]
            if all(n.isdigit() for n in rows):
                known += -(-math.prod(map(int, rows)) // part.rows_per_group)
            else:
                unknown.append(f"-(-({' * '.join(rows)}) // {part.rows_per_group})")
            ends.append(" + ".join([str(known), *unknown]))
        dtypes = [t.dtype for part in self.parts for t in part.tensors]
        write_call(name, [*tensors, *numbers, *ends], [*dtypes, *kinds, *[int] * len(ends)])

    def codegen_nan_check(self) -> None:
        for part in self.parts:
            part.codegen_nan_check()


def groups_of(kernels: list[SlangKernel]) -> list[list[SlangKernel]]:
    """Kernels in their order, as many together as one launch takes."""
    groups: list[list[SlangKernel]] = []
    room = 0
    for kernel in kernels:
        count = ComboKernel.arguments_of(kernel)
        if not ComboKernel.takes(kernel):
            groups.append([kernel])
            room = 0
        elif count <= room:
            groups[-1].append(kernel)
            room -= count
        else:
            groups.append([kernel])
            room = MAX_ARGUMENTS - count
    return groups


def independent_nodes(scheduler) -> list[list]:
    """Small kernels of mps that could run side by side, in lists that one launch may take."""
    found: list[list] = []
    if V.graph.cpp_wrapper:
        return found
    for level in scheduler._topological_sort_nodes():
        small = [node for node in level if _is_small(node)]
        size = config.combo_kernel_max_num_nodes
        found += [small[i : i + size] for i in range(0, len(small), size)]
    return found


def _is_small(node) -> bool:
    if (
        isinstance(node, FusedMixOrderReductions)
        or not on_mps(node)
        or not hasattr(node, "get_read_write_buffers_sizes")
    ):
        return False
    return min(node.get_read_write_buffers_sizes(), _touched_bytes(node)) <= MAX_PART_BYTES


def _touched_bytes(node) -> float:
    """No less than what a node reads and writes: of large buffers it may touch a few elements."""
    if not isinstance(node, (SchedulerNode, FusedSchedulerNode)):
        return math.inf
    numels = [V.graph.sizevars.optimization_hint(numel, fallback=math.inf) for numel in node.group[1]]
    return math.prod(numels) * sum(_item_bytes(dep.name) for dep in node.read_writes.reads_and_writes())


def _item_bytes(name: str) -> int:
    """0 for what orders nodes and holds no tensor, as of numbers that were read from the device."""
    buffer = V.graph.name_to_buffer.get(name)
    dtype = V.graph.get_dtype(name) if buffer is None else buffer.maybe_get_dtype()
    return 0 if dtype is None else dtype.itemsize


def install() -> None:
    """Groups of mps beside those of other devices, whose grouping leaves mps out; on unless that was decided before."""
    from torch._inductor.scheduler import ForeachKernelSchedulerNode

    of_others = ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels

    def group(scheduler):
        return [*of_others(scheduler), *independent_nodes(scheduler)]

    ForeachKernelSchedulerNode.set_group_algorithm_for_combo_kernels(group)
    if config._is_default("combo_kernels"):
        set_default(config, "combo_kernels", True)
    # PyTorch 2.14 and newer limit the memory that groups may add, and with a limit make groups of their own alone. Ours
    # are of small kernels.
    for limit in ("combo_kernel_peak_memory_increase_gb", "combo_kernel_peak_memory_pct_threshold"):
        if hasattr(config, limit) and config._is_default(limit):
            set_default(config, limit, None)
