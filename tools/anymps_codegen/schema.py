"""PyTorch's own operator list, as torchgen packages it, looked up by the names that our sources use."""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path

import torchgen
from torchgen.gen import get_grouped_native_functions, parse_native_yaml
from torchgen.model import DispatchKey, NativeFunction, NativeFunctionsGroup


class CodegenError(Exception):
    """A mistake in our sources or tables: the message is a whole sentence, shown without a traceback."""


class Schema:
    """All operators of the installed PyTorch, those with generated `out` overloads included.

    An operator is named as in native_functions.yaml ("add.out", "_softmax.out", "view") or in marker form, where '.'
    is '_' ("add_out", "_softmax_out"; the in-place add_.Tensor is "add__Tensor").
    """

    def __init__(self) -> None:
        aten = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
        parsed = parse_native_yaml(str(aten / "native_functions.yaml"), str(aten / "tags.yaml"))
        functions = parsed.native_functions
        self._apples = parsed.backend_indices[DispatchKey.MPS]
        self._composite = parsed.backend_indices[DispatchKey.CompositeExplicitAutograd]
        self._backends = parsed.backend_indices
        derivatives = (aten.parent.parent / "autograd" / "derivatives.yaml").read_text()
        self._differentiated = set(re.findall(r"^- name: ([\w.]+)\(", derivatives, re.MULTILINE))
        self._by_op: dict[str, NativeFunction] = {str(f.func.name): f for f in functions}
        self._by_marker: dict[str, list[str]] = {}
        for op in self._by_op:
            self._by_marker.setdefault(marker_name(op), []).append(op)
        self._groups: dict[str, NativeFunctionsGroup] = {}
        for group in get_grouped_native_functions(functions):
            if isinstance(group, NativeFunctionsGroup):
                for function in group.functions():
                    self._groups[str(function.func.name)] = group

    def ops(self) -> list[str]:
        return list(self._by_op)

    def op_of_marker(self, marker: str) -> str:
        """The operator that a marker names. Raises CodegenError for an unknown or ambiguous name."""
        found = self._by_marker.get(marker, [])
        if len(found) == 1:
            return found[0]
        if found:
            raise CodegenError(f"'{marker}' is ambiguous: it may mean {_listed(found)}.")
        raise CodegenError(f"PyTorch has no operator '{marker}'{self._near(marker, self._by_marker)}.")

    def is_composite(self, function: NativeFunction) -> bool:
        """Whether PyTorch has a kernel of it for all devices, beside its derivative."""
        return self._composite.has_kernel(function)

    def function(self, op: str) -> NativeFunction:
        """Raises CodegenError for an unknown operator."""
        if op not in self._by_op:
            raise CodegenError(f"PyTorch has no operator '{op}'{self._near(op, self._by_op)}.")
        return self._by_op[op]

    def group(self, op: str) -> NativeFunctionsGroup | None:
        """The functional, in-place and out variants that op is one of; None where it has no others."""
        return self._groups.get(op)

    def structured_group(self, op: str) -> NativeFunctionsGroup | None:
        """The structured group whose `out` overload is op; None where op is no such overload."""
        group = self._groups.get(op)
        if group is None or not group.structured or str(group.out.func.name) != op:
            return None
        return group

    def own_variants(self, op: str) -> list[NativeFunction]:
        """The functional, in-place and out variants of op that each backend writes itself (no composite kernel), and op
        itself in any case."""
        group = self._groups.get(op)
        functions = group.functions() if group is not None else [self.function(op)]
        return [f for f in functions if not f.has_composite_kernel or str(f.func.name) == op]

    def overloads(self, base: str) -> list[NativeFunction]:
        """All overloads of an operator and of its in-place form."""
        names = (base, base + "_")
        return [f for op, f in self._by_op.items() if op.partition(".")[0] in names]

    def composite_kernel(self, function: NativeFunction) -> str:
        """The name in at::native of the kernel that serves every backend without one of its own."""
        return self._composite.get_kernel(function).kernel

    def kernels(self, key: str) -> dict[str, str]:
        """Operator -> the name in at::native of its own kernel for a dispatch key ("SparseCPU")."""
        index = self._backends[DispatchKey.parse(key)]
        return {op: index.get_kernel(f).kernel for op, f in self._by_op.items() if index.has_kernel(f)}

    def structured_out(self, op: str) -> str | None:
        """The name of the `out` overload of the structured group that op belongs to; None if it is in none."""
        group = self._groups.get(op)
        return str(group.out.func.name) if group is not None and group.structured else None

    def loses_gradient(self, op: str) -> bool:
        """True where PyTorch differentiates op through the operators that it is made of: a kernel of our own would cut
        the gradient off, unless it is registered for AutogradMPS as well."""
        function = self.function(op)
        return (
            function.has_composite_implicit_autograd_kernel
            and op not in self._differentiated
            and not self._apples.has_kernel(function)
        )

    @staticmethod
    def _near(name: str, known: dict[str, object]) -> str:
        near = [k for k in known if k.startswith(name + "_") or k.startswith(name + ".")][:6]
        near += [k for k in difflib.get_close_matches(name, known, n=4, cutoff=0.75) if k not in near]
        return f"; near matches are {_listed(near)}" if near else ""


def marker_name(op: str) -> str:
    """How op is written in markers: "add.out" is add_out."""
    return op.replace(".", "_")


@functools.cache
def torch_version() -> tuple[int, int]:
    """Major and minor version of the torch that is installed beside torchgen."""
    text = (Path(torchgen.__file__).parent.parent / "torch" / "version.py").read_text()
    major, minor = re.search(r"__version__ = ['\"](\d+)\.(\d+)", text).groups()
    return int(major), int(minor)


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{n}'" for n in names)


@functools.cache
def pytorch_schema() -> Schema:
    """The schema of the torch that is installed, parsed once a process (0.5 s)."""
    return Schema()
