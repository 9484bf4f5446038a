#!/usr/bin/env python3
"""Checks the shape of the tree: which way includes go, where PyTorch may be, lengths, words of docs/glossary.md, names
of test files.

    check_structure.py [folder]     the root of a checkout; this one's by default

Prints one line a violation and exits with 1 when there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# A file includes its own layer and those to the left.
LAYERS = ("spirv", "vulkan", "compiler", "runtime", "kernels", "gemm", "ops", "distributed", "aoti")
APART = {"compiler": ("vulkan",), "aoti": ("distributed",)}  # but not these
# Families of operators that do not include each other: what they share is below them.
FAMILIES = ("attention", "conv", "matmul")
# Folders of shaders/ that import nothing but these and themselves; other folders import themselves and all of these.
SHADER_LAYERS = ("lib", "gemm")
WITHOUT_TORCH = ("spirv", "vulkan", "compiler")
MOST_LINES = {".cpp": 600, ".h": 600, ".slang": 300, ".py": 400}
MOST_COLUMNS = 120
LONG_LINES_CHECKED = {*MOST_LINES, ".cmake"}
FOLDERS = ("csrc", "shaders", "torch_anymps", "tools", "tests", "benchmarks", "examples", "cmake")

# Words that are not the field's, as patterns of whole identifiers, and what to take instead: see docs/glossary.md.
REFUSED = {
    "part_k|longest_part|shortest_part|sum_parts|run_parts|cut_k": "split_k, k_per_split, reduce_split_k",
    "most_ways|share_last": "tail_split",
    "HalfRanges?|HalfChoice|(find|guess)_ranges?|may_see_range": "AmaxState, ScaleCondition, compute_amax, sample_amax",
    "F32x[123]|f32x[123]|f32_parts|parts_of_f32": "BF16x1, BF16x2, BF16x3; bf16_terms",
    "Halves[12]|HalfFragments|multiplies_halves|may_be_halves": "F16x1, F16x2, ScaledRows, ScaledFragments",
    "kAhead|loads_ahead": "kPrefetch, prefetch_loads",
    "Contraction|run_contractions": "GemmProblem, ImplicitGemm",
    "(Gathered|Affine)(Factor|Args)|(Gather|Affine)Operand": "Im2colOperand, StridedOperand",
    "IOutput|ConvOutput|MatrixOutput|PackedOutput|DirectOutput": "IEpilogue, GemmEpilogue, ...",
    "kStripPitch|kStripWords|store_by_strips": "kStagingPitch, kStagingWords, store_staged",
    "kMark[MN]|groups_of_marked|mark_count": "fallback_flags, kFlagTileM, kFlagTileN",
    "DigitWalk|TapWalk|ImageWalk|kGatherWalk": "CoordinateIterator, TapIterator, IteratorMode",
    "FragmentPlaces|fragment_places|flash_places": "FragmentLayout, fragment_layout",
    "(sums|left|right)_swapped|k(Sums|Left|Right)Swapped": "acc_swapped, a_swapped, b_swapped",
    "AlongWide|RowsWide|AlongShifted|RowsShifted": "KMajorVec, MnMajorVec, KMajorUnaligned, MnMajorUnaligned",
    "lanes_a_row|lanes_of_columns": "threads_per_row, threads_of_columns",
    "words_16|load_quad|forward_in_words|in_fours": "vec8_16, load_vec4, forward_vectorized, vectorized",
    "short_row_sums|column_sums|plane_sums": "reduce_small_inner, reduce_outer, reduce_nc_hw",
    "kOrdered": "kDeterministic",
    "PlainOr|is_plain|are_modes_off": "DefaultDispatchOr, has_default_dispatch, no_mode_is_active",
    "run_apart": "run_via_temporary",
    "seldom": "cold, rarely",
    r"k(Most|Fewest|Least)[A-Z]\w*|kMost|kFewest": "kMax..., kMin...",
}
CHECKED_FOR_WORDS = {".cpp", ".h", ".slang", ".py", ".cmake", ".yaml"}
# The lists themselves.
LISTS_OF_WORDS = {"tools/check_structure.py", "tests/test_structure.py"}

_WORDS = re.compile(r"\b(?:" + "|".join(f"(?P<w{i}>{old})" for i, old in enumerate(REFUSED)) + r")\b")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_IMPORT = re.compile(r'^\s*(?:(?:__exported\s+)?import\s+([\w.]+);|#\s*include\s+"([\w./]+)")', re.MULTILINE)
_TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")


def check(root: Path) -> list[str]:
    """All violations in the tree, as `path:line: sentence`."""
    found = []
    tests: dict[str, Path] = {}
    shaders: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in LONG_LINES_CHECKED | CHECKED_FOR_WORDS and path.is_file():
                name = path.relative_to(root)
                text = path.read_text()
                rules = (*_lengths(path, text), *_includes(name, text), *_imports(name, text), *_words(name, text))
                found += [f"{name}:{line}: {what}" for line, what in rules]
                # Headers' namespaces are named by files alone.
                if folder == "shaders" and (other := shaders.setdefault(path.stem, name)) != name:
                    found.append(f"{name}:1: {other} has the same name; names of shaders are unique.")
                # pytest imports test files by their names alone.
                if path.match("test_*.py") and (other := tests.setdefault(path.name, name)) != name:
                    found.append(f"{name}:1: {other} has the same name, and pytest collects one of the two.")
    return found


def _lengths(path: Path, text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    most = MOST_LINES.get(path.suffix)
    if most is not None and len(lines) > most:
        yield most + 1, f"the file has {len(lines)} lines; {path.suffix} files have at most {most}: split it."
    for number, line in enumerate(lines if path.suffix in LONG_LINES_CHECKED else [], 1):
        if len(line) > MOST_COLUMNS:
            yield number, f"the line has {len(line)} columns, {MOST_COLUMNS} are allowed."


def _includes(name: Path, text: str) -> Iterator[tuple[int, str]]:
    parts = name.parts
    if len(parts) < 3 or parts[0] != "csrc" or parts[1] not in LAYERS:
        return
    layer = parts[1]
    for match in _INCLUDE.finditer(text):
        target = match.group(1)
        line = text.count("\n", 0, match.start(1)) + 1
        other = _layer_of(target, name)
        if other is not None and LAYERS.index(other) > LAYERS.index(layer):
            yield line, f"csrc/{layer} includes {target} of csrc/{other}; includes go {' <- '.join(LAYERS)} only."
        elif layer == "ops" and parts[2] in FAMILIES and _family_of(target) not in (None, parts[2]):
            yield line, f"csrc/ops/{parts[2]} includes {target}; what families of operators share is in csrc/gemm."
        elif other in APART.get(layer, ()):
            yield line, f"csrc/{layer} includes {target} of csrc/{other}; neither knows of the other."
        if layer in WITHOUT_TORCH and _TORCH.match(target):
            yield line, f"csrc/{layer} includes {target}; it has no PyTorch headers."


def _imports(name: Path, text: str) -> Iterator[tuple[int, str]]:
    if len(name.parts) < 2 or name.parts[0] != "shaders":
        return
    own = name.parts[1] if len(name.parts) > 2 else ""
    allowed = SHADER_LAYERS[: SHADER_LAYERS.index(own) + 1] if own in SHADER_LAYERS else (*SHADER_LAYERS, own)
    for match in _IMPORT.finditer(text):
        target = match.group(1) or match.group(2).replace("/", ".").removesuffix(".slang")
        if target.rpartition(".")[0] not in allowed:
            line = text.count("\n", 0, match.start(match.lastindex)) + 1
            yield line, f"shaders/{own} imports {target}; what several families import is in shaders/lib or gemm."


def _words(name: Path, text: str) -> Iterator[tuple[int, str]]:
    if name.as_posix() in LISTS_OF_WORDS or name.suffix not in CHECKED_FOR_WORDS:
        return
    instead = list(REFUSED.values())
    for match in _WORDS.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        number = next(i for i in range(len(instead)) if match.group(f"w{i}"))
        yield line, f"{match.group()} is not this project's word; docs/glossary.md has {instead[number]}."


def _family_of(target: str) -> str | None:
    """Of the families that do not include each other."""
    parts = target.removeprefix("anymps/").split("/")
    return parts[1] if parts[0] == "ops" and len(parts) > 2 and parts[1] in FAMILIES else None


def _layer_of(target: str, name: Path) -> str | None:
    """The layer that an included file belongs to; generated headers are <anymps/layer/...>."""
    if target.startswith("."):
        resolved: list[str] = []
        for part in (*name.parent.parts, *Path(target).parts):
            resolved = resolved[:-1] if part == ".." else [*resolved, part]
        target = "/".join(resolved).removeprefix("csrc/")
    first = target.removeprefix("anymps/").split("/")[0]
    return first if first in LAYERS and "/" in target else None


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = check(root)
    print("\n".join(violations) if violations else "structure: no violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
