"""One generated kernel: what Inductor's loop bodies say, kept as loads, lines and stores, and written as Slang."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import sympy
import torch
from torch._inductor.codegen.common import CSE, CSEVariable, IndentedBuffer, SizeArg, TensorArg
from torch._inductor.codegen.simd import IterationRangesEntry, SIMDKernel
from torch._inductor.codegen.triton_utils import should_unwrap_unspec_arg
from torch._inductor.utils import sympy_subs
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.value_ranges import ValueRanges

from .access import Load, Store, is_aligned, is_removed, stride_of
from .device import device_config
from .dtypes import REGISTER, STORAGE, converted, is_fraction
from .host_numbers import computed_by_host
from .loops import TILE, LoopWriter
from .mix_order import PartialSums
from .overrides import SlangOverrides, install_rows
from .printer import SlangPrinter
from .reduction import Reductions


@dataclass
class Phase:
    """A loop over the elements of a row, or what is done once a row (or, without reductions, an element)."""

    in_loop: bool = False
    indexing: list[str] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    masked_reads: list[sympy.Expr] = field(default_factory=list)  # indices of loads among the lines of `compute`
    compute: list[str] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    prologue: list[str] = field(default_factory=list)  # accumulators
    sums: list[str] = field(default_factory=list)  # those of them that round as they grow
    epilogue: list[str] = field(default_factory=list)  # their combination
    row_stores: list[Store] = field(default_factory=list)  # of results of reductions

    def __bool__(self) -> bool:
        return any((self.indexing, self.loads, self.compute, self.stores, self.epilogue, self.row_stores))


class TypedCSE(CSE):
    """Values of one text and of several dtypes are several: integers of 8 bits wrap where those of 32 do not."""

    dtype: torch.dtype | None = None  # of the value that is being generated

    def generate(self, buffer, expr, *, dtype=None, **options) -> CSEVariable:
        outer, self.dtype = self.dtype, dtype
        try:
            return super().generate(buffer, expr, dtype=dtype, **options)
        finally:
            self.dtype = outer

    def augment_key(self, cache_key: str) -> str:
        return cache_key if self.dtype is None else f"{cache_key} {self.dtype}"


class SlangKernel(Reductions, SIMDKernel):
    """Inductor's view is that of SIMDKernel: looped reductions, of which codegen_body ends one."""

    overrides = SlangOverrides
    suffix = ";"
    newvar_prefix = "let "
    sexpr = SlangPrinter().doprint
    kexpr = sexpr

    def __init__(self, tiling, **kwargs):
        install_rows()
        super().__init__(tiling, **kwargs)
        self.cse = TypedCSE(self.newvar_prefix, self.suffix)
        self.ids = itertools.count()
        self.phases: list[Phase] = []
        self.phase = Phase()
        self.row_indexing: list[str] = []
        self.results: OrderedSet[CSEVariable] = OrderedSet()
        self.messages: list[str] = []  # of errors that the kernel reports
        self.in_range: set[str] = set()  # indices that were checked already
        self.partial_sums: PartialSums | None = None  # beside what it does with rows
        self.is_heavy = False  # a functor of some hundred instructions, of which the text has one copy only
        self.is_single_operation = _operation_count(self.features) <= 1

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return REGISTER[dtype]

    # --- memory

    def load(self, name: str, index: sympy.Expr) -> CSEVariable:
        pointer = self.args.input(name)
        dtype = V.graph.get_dtype(name)
        if should_unwrap_unspec_arg(name):
            return self.cse.generate(self.compute, pointer, dtype=dtype)
        index = self.prepare_indexing(index)
        if self.loads is self.compute:  # what other lines compute decides about it
            self.phase.masked_reads.append(self.rename_indexing(index))
            text = f"load({pointer}, {self.index_to_str(index)})"
            return self.cse.generate(self.compute, text, dtype=dtype)
        key = f"load {pointer} {index}"
        var = self.cse.try_get(key)
        if var is None:
            var = self.cse.newvar(dtype=dtype)
            self.cse.put(key, var)
            self.phase.loads.append(Load(str(var), name, pointer, self.rename_indexing(index), dtype))
        else:
            var.use_count += 1
        return var

    def store(self, name: str, index: sympy.Expr, value: CSEVariable, mode=None) -> None:
        pointer = self.args.output(name)
        index = self.prepare_indexing(index)
        dtype = V.graph.get_dtype(name)
        text = converted(value, None, dtype)
        is_rows = self.features.is_reduction()
        if mode == "atomic_add":
            self.cse_clear_loads(pointer)
            native = "_native" if dtype == torch.float32 and device_config().float_atomics else ""
            add = f"atomic_add{native}({pointer}, {self.index_to_str(index)}, {text});"
            self.stores.writeline(f"if ({'inside' if self.inside_reduction else 'first'}) {add}" if is_rows else add)
        elif mode is not None:
            raise NotImplementedError(f"store with mode {mode}")
        else:
            once_a_row = is_rows and not self.inside_reduction
            if once_a_row:
                # Later loops take the value from its variable: other threads' stores may not be seen yet.
                self.results.add(value)
            stores = self.phase.row_stores if once_a_row else self.phase.stores
            stores.append(Store(name, pointer, self.rename_indexing(index), text, dtype))

    def clamped(self, var: CSEVariable, size: sympy.Expr) -> CSEVariable:
        """An index that may be out of range: that is reported, and the element read instead is one that there is."""
        bound = self.index_to_str(size)
        self._report(f"{var} < 0 || {var} >= {bound}", f"index out of bounds: expected 0 <= index < {size}")
        text = f"clamp({self.index_dtype}({var}), {self.index_dtype}(0), max({self.index_dtype}({bound}) - 1, 0))"
        bounds = ValueRanges(0, size - 1) if isinstance(size, sympy.Integer) else ValueRanges.unknown_int()
        result = self.cse.generate(self.compute, text, bounds=bounds, dtype=self.get_index_dtype_as_torch_dtype())
        self.in_range.add(str(result))
        return result

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        if not (lower or upper) or str(expr) in self.in_range:
            return
        index, bound = self.index_to_str(self.prepare_indexing(expr)), self.index_to_str(size)
        tests = [f"{index} < 0"] * lower + [f"{index} >= {bound}"] * upper
        self._report(" || ".join(tests), f"index out of bounds: expected 0 <= index < {size}")

    def device_assert_async(self, cond: CSEVariable, msg: str) -> None:
        self._report(f"!{cond}", msg)

    def _report(self, condition: str, message: str) -> None:
        """Where a condition holds, the next synchronization raises."""
        if message not in self.messages:
            self.messages.append(message)
        n = self.messages.index(message)
        self.compute.writeline(f"if ({condition}) report_error(uint64_t(error{n}), uint(error_code{n}));")

    def active_range_trees(self):
        """Those of rows, and in a kernel with reductions those of their elements."""
        trees = super().active_range_trees()
        return trees if self.features.is_reduction() else [t for t in trees if not t.is_reduction]

    # --- loops

    def rename_indexing(self, index):
        return super().rename_indexing(computed_by_host(index) if isinstance(index, sympy.Basic) else index)

    def codegen_iteration_ranges_entry(self, entry: IterationRangesEntry) -> None:
        line = f"let {entry.name} = {self.sexpr(self.rename_indexing(entry.expr))};"
        (self.phase.indexing if entry.root.is_reduction else self.row_indexing).append(line)

    def codegen_body(self) -> None:
        phase, self.phase = self.phase, Phase()
        phase.in_loop = self.inside_reduction
        phase.compute += _lines(self.loads) + _lines(self.compute) + _lines(self.stores)
        for buffer in (self.loads, self.compute, self.stores):
            buffer.clear()
        if not phase:
            return
        self.phases.append(phase)
        if phase.in_loop:
            # What a loop has computed is gone after it, but for the results of reductions.
            self.cse.invalidate(self.results)
            for tree in self.range_trees:
                if tree.is_reduction:
                    tree.cache_clear()

    # --- the text

    def codegen_kernel(self, name=None) -> str:
        self.codegen_body()
        self.tensors, self.numbers = self._arguments()
        writer = LoopWriter(self)
        self.tiled, self.rows_per_group = writer.tiled, writer.rows_per_group
        return writer.text()

    def text_as_part(self, number: int) -> str:
        """The function that is a part of a kernel of several; after codegen_kernel."""
        return LoopWriter(self).text(number)

    def _arguments(self) -> tuple[list[TensorArg], list[tuple[str, str, sympy.Expr | TensorArg]]]:
        """Tensors, and numbers: (name, its type in registers, its value or the tensor on the CPU that holds it)."""
        _, _, signature, _ = self.args.python_argdefs()
        tensors, numbers = [], []
        for arg in signature:
            if isinstance(arg, TensorArg) and should_unwrap_unspec_arg(arg.buffer):
                numbers.append((arg.name, REGISTER[arg.dtype], arg))
            elif isinstance(arg, TensorArg):
                if arg.dtype not in STORAGE:
                    raise NotImplementedError(f"tensors of {arg.dtype} in generated kernels")
                tensors.append(arg)
            elif isinstance(arg, SizeArg):
                numbers.append((arg.name, "float" if is_fraction(arg.expr) else self.index_dtype, arg.expr))
            else:
                raise NotImplementedError(f"arguments of type {type(arg).__name__}")
        return tensors, numbers

    def call_kernel(self, name: str, node=None, deallocate_ws: bool = True) -> None:
        tensors, numbers, kinds = self.call_arguments(name)
        write_call(name, [*tensors, *numbers], [t.dtype for t in self.tensors] + kinds)

    def call_arguments(self, name: str) -> tuple[list[str], list[str], list[type]]:
        """What the wrapper passes: tensors, numbers, and types of these.

        name: the kernel's, for sizes that are variables there.
        """
        wrapper = V.graph.wrapper_code
        text = wrapper.number_argument if V.graph.cpp_wrapper else _number_argument
        numbers = [text(value) for _, _, value in self.numbers]
        for tree in self.active_range_trees():
            numel = tree.numel
            plain = isinstance(numel, (sympy.Integer, sympy.Symbol, int))
            numbers.append(text(numel) if plain else str(wrapper.generate_numel_expr(name, tree).inner))
        if self.tiled:
            divided = "/" if V.graph.cpp_wrapper else "//"
            numbers.append(" * ".join(f"(({numel} + {TILE - 1}) {divided} {TILE})" for numel in numbers[-2:]))
        elif self.partial_sums is not None:
            numbers.append(str(self.partial_sums.groups))
        kinds = [float if kind == "float" else int for _, kind, _ in self.numbers]
        return [t.buffer for t in self.tensors], numbers, kinds + [int] * (len(numbers) - len(kinds))

    def codegen_nan_check(self) -> None:
        """Lines of the wrapper that look at all arguments of the kernel, for torch._inductor.config.nan_asserts."""
        for name in (tensor.buffer for tensor in self.tensors):
            if V.graph.cpp_wrapper:
                check = f'AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_check_inf_and_nan("{name}", {name}));'
                V.graph.wrapper_code.writeline(check)
                continue
            V.graph.wrapper_code.writeline(f"assert not {name}.isnan().any().item()")
            V.graph.wrapper_code.writeline(f"assert not {name}.isinf().any().item()")

    def launch_config(self) -> tuple:
        """What the launcher needs: tensors, written (bits), numbers, those that count rows, rows a workgroup."""
        written = sum(1 << i for i, yes in enumerate(self.written()) if yes)
        count = len(self.numbers)
        trees = self.active_range_trees()
        grid = tuple(count + i for i, tree in enumerate(trees) if not tree.is_reduction)
        if self.tiled or self.partial_sums is not None:  # the last number is that of workgroups
            return len(self.tensors), written, count + len(trees) + 1, (count + len(trees),), 1
        return len(self.tensors), written, count + len(trees), grid, self.rows_per_group

    def written(self) -> list[bool]:
        """Of each tensor, whether the kernel writes it."""
        outputs = ("out_ptr", "in_out_ptr")
        return [t.name.startswith(outputs) or t.buffer in self.mutations for t in self.tensors]

    def is_live(self, store: Store) -> bool:
        return not is_removed(self, store.buffer)

    def is_vectorized(self, tree, access: Load | Store) -> bool:
        """Whether four neighbours along a range are one access."""
        return stride_of(self, tree, access.index) == 1 and is_aligned(self, tree, access.buffer, access.index)

    def step_along(self, tree, index: sympy.Expr) -> sympy.Expr:
        """By how much an index differs between the first two elements of a range, in the first row."""
        index = index.expand(identity=True)
        index = sympy_subs(index, {symbol: entry.expr for symbol, entry in self.range_tree_nodes.items()})
        index = sympy_subs(index, {t.index_sym(): sympy.S.Zero for t in self.range_trees if t is not tree})
        first, second = (sympy_subs(index, {tree.index_sym(): sympy.Integer(n)}) for n in (0, 1))
        return second - first

    def is_broadcast(self, tree, access: Load) -> bool:
        """Whether four neighbours along a range have one element."""
        return stride_of(self, tree, access.index) == 0

    def cse_clear_loads(self, pointer: str) -> None:
        """Forgets what was loaded from memory that changes."""
        for key in [k for k in self.cse._cache if isinstance(k, str) and k.startswith(f"load {pointer} ")]:
            del self.cse._cache[key]


def _number_argument(value: sympy.Expr | TensorArg) -> str:
    """An argument of a kernel in Python."""
    return f"{value.buffer}.item()" if isinstance(value, TensorArg) else str(value)


def write_call(name: str, args: list[str], kinds: list) -> None:
    V.graph.wrapper_code.generate_kernel_call(
        name, args, device=V.graph.get_current_device_or_throw(), triton=False, arg_types=kinds
    )


# What moves values and does not compute with them.
_NO_OPERATIONS = {"load", "store", "store_reduction", "get_index", "constant", "index_expr", "to_dtype", "output"}


def _operation_count(features) -> int:
    counts = [node._body.op_counts for node in features.scheduler_nodes()]
    return sum(n for count in counts for name, n in count.items() if name not in _NO_OPERATIONS)


def _lines(buffer: IndentedBuffer) -> list[str]:
    text = buffer.getvalue()
    return text.rstrip("\n").split("\n") if text.strip() else []
