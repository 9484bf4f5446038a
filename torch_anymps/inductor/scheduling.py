"""Which nodes of a graph become one kernel, and the lines of the generated module that define and call it."""

from __future__ import annotations

import functools

from torch._inductor import config
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import Scheduler
from torch._inductor.utils import get_fused_kernel_name, get_kernel_metadata
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from . import mix_order, runtime
from .combo import ComboKernel, groups_of
from .device import on_mps
from .kernel import SlangKernel


def install() -> None:
    Scheduler.fusable_weak_dep = _after_earlier_writes(Scheduler.fusable_weak_dep)


def _after_earlier_writes(original):
    """Whether a write may join the reads that it has to follow, of a tensor that was written before, too.

    PyTorch compares their indices, but before 2.15 not of reads that have the name of that earlier write. Nor does it
    ask whether the loops are the same yet: what node2 takes from node1 may become so by other loops, after this answer.
    """

    @functools.wraps(original)
    def fusable_weak_dep(self, weak_dep, node1, node2):
        if not original(self, weak_dep, node1, node2):
            return False
        if not on_mps(node1):
            return True
        [write] = (w for w in node2.read_writes.writes if w.name == weak_dep.mutating_buf)
        tensor = self.mutation_real_name[write.name]
        reads = (r for r in node1.read_writes.reads if self.mutation_real_name.get(r.name) == tensor)
        if not all(isinstance(r, MemoryDep) and (r.index, r.size) == (write.index, write.size) for r in reads):
            return False
        given = [w for w in node1.read_writes.writes if isinstance(w, MemoryDep)]
        taken = (r.rename(self.mutation_renames) for r in node2.read_writes.reads if isinstance(r, MemoryDep))
        pairs = ((r, w) for r in taken for w in given if r.name == self.mutation_renames.get(w.name, w.name))
        return all(self.fusable_read_and_write(r, w) for r, w in pairs)

    return fusable_weak_dep


class SlangScheduling(SIMDScheduling):
    kernel_type = SlangKernel
    backend_features = OrderedSet([BackendFeature.INPLACE_BUFFERS])

    @classmethod
    def get_backend_features(cls, device) -> OrderedSet[BackendFeature]:
        return cls.backend_features

    @classmethod
    def get_tiling_and_scores(cls, *args, **kwargs):
        # One range of reductions a kernel.
        if not (config.triton.tile_reductions or config.triton.prefer_nd_tiling):
            return super().get_tiling_and_scores(*args, **kwargs)
        with config.patch({"triton.tile_reductions": False, "triton.prefer_nd_tiling": False}):
            return super().get_tiling_and_scores(*args, **kwargs)

    def codegen_combo_kernel(self, combo_kernel_node) -> None:
        """Independent kernels as one, but for those that cannot be parts of one."""
        made = []
        for node in combo_kernel_node.get_subkernel_nodes():
            nodes = node.get_nodes()
            _, (numel, rnumel) = max(nodes, key=lambda x: int(x.is_reduction())).group
            schedule = self.generate_node_schedule(nodes, numel, rnumel)
            features = SIMDKernelFeatures(schedule, numel, rnumel, None)
            tiling, scores = self.get_tiling_and_scores(schedule, numel, rnumel, features.coalesce_analysis)
            kernel = self.kernel_type(tiling, features=features, tiling_scores=scores)
            self.process_kernel(kernel, schedule)
            with V.set_kernel_handler(kernel):
                made.append((kernel, kernel.codegen_kernel(), [*nodes]))
        nodes_of = {id(kernel): (text, nodes) for kernel, text, nodes in made}
        for group in groups_of([kernel for kernel, _, _ in made]):
            whole = group[0] if len(group) == 1 else ComboKernel(group)
            if len(group) == 1:
                text, nodes = nodes_of[id(whole)]
            else:
                with V.set_kernel_handler(group[0]):
                    text = whole.text()
                nodes = [node for kernel in group for node in nodes_of[id(kernel)][1]]
            name = self.define_kernel(text, nodes, whole)
            self.codegen_comment(nodes, name)
            with V.set_kernel_handler(group[0]):
                whole.call_kernel(name)
                if config.nan_asserts:
                    whole.codegen_nan_check()
        self.free_buffers_in_scheduler()

    def codegen_mix_order_reduction(self, node) -> None:
        mix_order.generate(self, node)

    def define_kernel(self, src_code: str, node_schedule, kernel: SlangKernel) -> str:
        wrapper = V.graph.wrapper_code
        launch, messages = kernel.launch_config(), tuple(kernel.messages)
        key = (src_code, launch, messages)
        if key in wrapper.src_to_kernel:
            return wrapper.src_to_kernel[key]
        fused = get_fused_kernel_name(node_schedule, "original_aten")
        name = "_".join(word for word in ("mps", fused, wrapper.next_kernel_suffix()) if word)
        wrapper.src_to_kernel[key] = name
        runtime.start(src_code.strip("\n"))
        origins, detailed_origins = get_kernel_metadata(node_schedule, wrapper)  # comments of the module's language
        wrapper.header.splice(f"\n{origins}\n{detailed_origins}")
        if V.graph.cpp_wrapper:
            wrapper.define_slang_kernel(name, launch, messages, src_code.strip("\n"))
            return name
        wrapper.header.writeline(f"{name} = mps_kernel({name!r}, {launch!r}, {messages!r}, '''")
        for line in src_code.strip("\n").split("\n"):
            wrapper.header.writeline(line)
        wrapper.header.writeline("''')")
        return name


class SlangWrapper(PythonWrapperCodegen):
    """The Python module of a graph."""

    @staticmethod
    def create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures=None):
        if is_subgraph:
            return SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return SlangWrapper()

    def write_header(self) -> None:
        super().write_header()
        self.header.writeline("from torch_anymps.inductor.runtime import kernel as mps_kernel")
        self.header.writeline("from torch_anymps.inductor.runtime import launcher as mps_launcher")
        self.header.writeline("from torch_anymps.inductor.plans import planned as mps_planned")
        self.header.writeline("empty_strided_mps = mps_launcher().empty_strided")

    def make_allocation(self, name, device, dtype, shape, stride, allocation_shape=None, is_pinned=False):
        if device.type != "mps" or (allocation_shape is not None and tuple(allocation_shape) != tuple(shape)):
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
        sizes, strides = (self.codegen_python_shape_tuple(x) for x in (shape, stride))
        return f"{name} = empty_strided_mps({sizes}, {strides}, {dtype})"
