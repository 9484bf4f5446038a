"""Finds TORCH_IMPL_FUNC(name), ANYMPS_ROW(name, ...), ANYMPS_FUNC(name) and its forms for sparse tensors in C++."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .registration import Entry
from .schema import CodegenError, Schema, torch_version

_MARKER = re.compile(r"\b(TORCH_IMPL_FUNC|ANYMPS_(?:SPARSE_(?:CSR_)?)?(?:FUNC|ROW))\s*\(([^(),]*)[),]")
# What the macro begins with -> the dispatch key, and what follows the operator in the kernel's name
# (csrc/ops/sparse/markers.h).
_KEYS = {
    "ANYMPS_SPARSE_CSR_": ("SparseCsrMPS", "_sparse_csr"),
    "ANYMPS_SPARSE_": ("SparseMPS", "_sparse"),
    "": ("MPS", ""),
}
# Blocks of one version of PyTorch (csrc/runtime/torch_version.h).
_CONDITIONAL = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
_VERSION = re.compile(r"(!?)\s*ANYMPS_TORCH_UNTIL\((\d+),\s*(\d+)\)")
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


@dataclass(frozen=True)
class Marker:
    name: str
    macro: str
    where: str  # file:line, for messages

    @property
    def row(self) -> bool:
        return self.macro.endswith("ROW")


def scan_text(text: str, where: str, version: tuple[int, int] | None = None) -> list[Marker]:
    """Markers of one source in order; those in comments, strings and blocks of other versions of PyTorch do not count.

    version is that of the installed PyTorch by default. Raises CodegenError where a marker's name is not a plain
    identifier (a macro that pastes names hides them), and for a condition of ANYMPS_TORCH_UNTIL and something else.
    """
    code = _COMMENT_OR_STRING.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    if "ANYMPS_TORCH_UNTIL" in code:
        code = _of_version(code, where, version or torch_version())
    markers = []
    for match in _MARKER.finditer(code):
        place = f"{where}:{code.count(chr(10), 0, match.start()) + 1}"
        macro, name = match[1], match[2].strip()
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise CodegenError(f"{place}: {macro}({name}) does not name one operator; write its name out.")
        markers.append(Marker(name, macro, place))
    return markers


def _of_version(code: str, where: str, version: tuple[int, int]) -> str:
    """The code with empty lines for those that `#if ANYMPS_TORCH_UNTIL(...)` leaves out for a version of PyTorch."""
    lines = code.split("\n")
    open_blocks: list[bool | None] = []  # whether the block is in; None where its condition is none of ours
    for number, line in enumerate(lines):
        directive = _CONDITIONAL.match(line)
        if directive is None:
            if False in open_blocks:
                lines[number] = ""
            continue
        word, condition = directive[1], directive[2].strip()
        ours = _VERSION.fullmatch(condition)
        if "ANYMPS_TORCH_UNTIL" in condition and (ours is None or word != "if"):
            raise CodegenError(f"{where}:{number + 1}: ANYMPS_TORCH_UNTIL(major, minor) stands alone behind #if.")
        if word.startswith("if"):
            within = ours and (version <= (int(ours[2]), int(ours[3]))) != bool(ours[1])
            open_blocks.append(within if ours else None)
        elif word == "endif" and open_blocks:
            open_blocks.pop()
        elif word == "else" and open_blocks and open_blocks[-1] is not None:
            open_blocks[-1] = not open_blocks[-1]
    return "\n".join(lines)


def entries_of_source(path: Path, where: str, schema: Schema) -> list[Entry]:
    """The registrations that one source asks for. Raises CodegenError naming the marker's line."""
    entries = []
    text = path.read_text()
    own_autograd = "TORCH_LIBRARY_IMPL(aten, AutogradMPS" in text
    for marker in scan_text(text, where):
        key, suffix = next(value for start, value in _KEYS.items() if marker.macro.startswith(start))
        try:
            op = schema.op_of_marker(marker.name)
            in_group = key == "MPS" and schema.structured_group(op) is not None
            if marker.macro == "TORCH_IMPL_FUNC" and not in_group:
                raise CodegenError(_not_structured(op, marker.name, schema))
            if key == "MPS" and schema.loses_gradient(op) and not own_autograd:
                raise CodegenError(
                    f"PyTorch differentiates '{op}' through the operators that it is made of; with a kernel on MPS it "
                    "would have no gradient. Leave it composite, or register it for AutogradMPS in the same file."
                )
        except CodegenError as error:
            raise CodegenError(f"{marker.where}: {error}") from None
        structured = in_group if marker.row else marker.macro == "TORCH_IMPL_FUNC"
        entries.append(Entry(op, marker.name + suffix, structured, marker.where, key, row=marker.row))
    return entries


def _not_structured(op: str, marker: str, schema: Schema) -> str:
    out = schema.structured_out(op)
    if out is not None:
        return f"TORCH_IMPL_FUNC takes the out overload of a structured operator: '{out}', not '{op}'."
    return f"'{op}' is not structured in PyTorch: write ANYMPS_FUNC({marker})."
