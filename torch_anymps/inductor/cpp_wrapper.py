"""Graphs as C++ modules: AOTInductor's, and those of torch._inductor.config.cpp_wrapper. Kernels lie in them as SPIR-V.

Modules call torch_anymps/include/anymps/aoti.h for kernels, and C shims for operators, of PyTorch's names: its wheels
lack those of mps, so that ours has them (tools/anymps_codegen/c_shims.py).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import sympy
import torch
from torch._inductor import cpp_builder
from torch._inductor.codegen.common import (
    DeferredLineBase,
    IndentedBuffer,
    get_device_op_overrides,
    register_device_op_overrides,
)
from torch._inductor.codegen.cpp_utils import cexpr
from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu, cpp_string_literal
from torch._inductor.codegen.mps_device_op_overrides import MPSDeviceOpOverrides
from torch._inductor.virtualized import V

from torch_anymps._load import LIBRARY, file_for, package_file

from .device import device_config

PACKAGE = Path(__file__).resolve().parent.parent


class SlangDeviceOpOverrides(MPSDeviceOpOverrides):
    """Lines of C++ modules that depend on the device."""

    def kernel_driver(self) -> str:
        return "#include <anymps/aoti.h>\n#include <anymps/c_shim_mps.h>"

    def cpp_kernel_type(self) -> str:
        return "anymps_aoti_kernel*"


class SlangCppWrapper(CppWrapperGpu):
    """The C++ module of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor_counts: dict[str, int] = {}  # of the kernels that are ours
        self.scalars = itertools.count()

    @staticmethod
    def create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures=None):
        return SlangCppWrapper()

    @staticmethod
    def _compatible_with_cpp_boxed_dispatch(op) -> bool:
        """Not with lists of sizes, of which PyTorch makes lists that kernels of plain numbers refuse."""
        lists = (a.real_type for a in op._schema.arguments if isinstance(a.real_type, torch.ListType))
        if any(isinstance(a.getElementType(), torch.SymIntType) for a in lists):
            return False
        return CppWrapperGpu._compatible_with_cpp_boxed_dispatch(op)

    def _codegen_jit_stream_declarations(self) -> None:
        """Nothing: kernels go to the current stream, of which PyTorch 2.15 would declare a variable."""

    def define_slang_kernel(self, name: str, launch: tuple, messages: tuple[str, ...], source: str) -> None:
        """A function of the kernel's name, which creates it at its first call. launch: SlangKernel.launch_config()."""
        tensors, written, numbers, grid, rows = launch
        self.tensor_counts[name] = tensors
        device = device_config()
        constants = IndentedBuffer()
        for table, kind, values in (
            ("grid", "uint32_t", [str(i) for i in grid]),
            ("messages", "char* const", [cpp_string_literal(m) for m in messages]),
        ):
            if values:
                constants.writeline(f"static const {kind} {table}[] = {{{', '.join(values)}}};")
        fields = (
            f'"{name}", words, sizeof(words) / sizeof(words[0]), {cpp_string_literal(device.name)}',
            f"{device.workgroup}, {device.subgroup}, {int(device.software)}, {int(device.float_atomics)}",
            f"{tensors}, {numbers}, {written}u, {'grid' if grid else 'nullptr'}, {len(grid)}, {rows}",
            f"{'messages' if messages else 'nullptr'}, {len(messages)}",
        )
        code = self.header
        code.writeline("/*")
        for line in source.replace("*/", "* /").split("\n"):
            code.writeline(line)
        code.writeline("*/")
        code.writeline(f"static const anymps_aoti_kernel* {name}() {{")
        with code.indent():
            code.writeline("static const anymps_aoti_kernel* const kernel = [] {")
            with code.indent():
                code.writeline(_SpirvLine(source, ""))
                code.splice(constants)
                code.writeline(f"const anymps_aoti_source source{{{', '.join(fields)}}};")
                code.writeline("anymps_aoti_kernel* created = nullptr;")
                code.writeline("AOTI_TORCH_ERROR_CODE_CHECK(anymps_aoti_create_kernel(&source, &created));")
                code.writeline("return created;")
            code.writeline("}();")
            code.writeline("return kernel;")
        code.writeline("}")

    def ensure_size_computed(self, sym: sympy.Symbol) -> None:
        # PyTorch's own knows whole numbers only.
        if sym in V.graph.sizevars.inv_precomputed_replacements and not sym.is_integer:
            if sym not in self.computed_sizes:
                self.computed_sizes.add(sym)
                self.writeline(f"const double {sym} = {cexpr(V.graph.sizevars.inv_precomputed_replacements[sym])};")
            return
        super().ensure_size_computed(sym)

    def number_argument(self, value) -> str:
        """An argument of a kernel in C++, before its call: an expression, or what a tensor on the CPU holds."""
        if isinstance(value, sympy.Expr | int | float):
            return cexpr(value)
        name = f"{value.buffer}_item_{next(self.scalars)}"
        self.codegen_tensor_item(value.dtype, value.buffer, name)
        return name

    def _generate_kernel_call_helper(self, kernel_name, call_args, *, arg_types=None, **kwargs):
        if kernel_name not in self.tensor_counts:
            return super()._generate_kernel_call_helper(kernel_name, call_args, arg_types=arg_types, **kwargs)
        count = self.tensor_counts[kernel_name]
        pack = {float: "fraction", int: "integer"}
        numbers = [f"anymps::aoti::{pack[t]}({a})" for a, t in zip(call_args[count:], arg_types[count:], strict=True)]
        printer = V.graph.wrapper_code.debug_printer
        printer.set_printer_args(call_args[:count], kernel_name, None, None, "cpp")
        with printer:
            self.writeline("{")
            self.writeline(f"    const AtenTensorHandle tensors[] = {{{', '.join(call_args[:count])}}};")
            self.writeline(f"    const uint64_t numbers[] = {{{', '.join(numbers)}}};")
            self.writeline(f"    AOTI_TORCH_ERROR_CODE_CHECK(anymps_aoti_launch({kernel_name}(), tensors, numbers));")
            self.writeline("}")


class _SpirvLine(DeferredLineBase):
    """The words of a kernel, once they are asked for: until then it is compiled in another thread."""

    def __init__(self, source: str, line: str):
        super().__init__(line)
        self.source = source

    def __call__(self) -> str:
        words = torch.ops.anymps.compile_slang(self.source).view(torch.uint32).tolist()
        return f"{self.line}static const uint32_t words[] = {{{','.join(map(str, words))}}};"

    def _new_line(self, line: str) -> _SpirvLine:
        return _SpirvLine(self.source, line)


def register() -> None:
    """Registers what C++ modules for mps begin with, and how they are built."""
    get_device_op_overrides("mps")  # PyTorch's own first
    register_device_op_overrides("mps", SlangDeviceOpOverrides())
    cpp_builder.get_cpp_torch_device_options = _build_options(cpp_builder.get_cpp_torch_device_options)


def _build_options(original):
    """Wraps torch._inductor.cpp_builder.get_cpp_torch_device_options: where our headers and our library are."""

    def get_cpp_torch_device_options(device_type, *args, **kwargs):
        options = original(device_type, *args, **kwargs)
        if device_type != "mps":
            return options
        definitions, includes, cflags, ldflags, folders, libraries, passthrough = options
        library = package_file(file_for(LIBRARY, str(torch.__version__)))
        version = library.stem.removeprefix("libtorch_anymps_")
        return (
            definitions,
            [*includes, str(PACKAGE / "include"), str(library.parent / f"include_{version}")],
            cflags,
            ldflags,
            [*folders, str(library.parent)],
            [*libraries, library.stem.removeprefix("lib")],
            passthrough,
        )

    return get_cpp_torch_device_options
