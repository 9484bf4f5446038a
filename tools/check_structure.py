#!/usr/bin/env python3
"""Checks the shape of the tree: which way includes go, where PyTorch may be, lengths, words of docs/glossary.md, files
that comments name, modules that one family imports, names and folders of test files.

    check_structure.py [folder]     the root of a checkout; this one's by default

Prints one line a violation and exits with 1 when there is any.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
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
MOST_LINES_OF_A_FUNCTION = 80
LONGER = "Over 80 lines: "  # and why: a comment line right above a function that may be longer
LONG_LINES_CHECKED = {*MOST_LINES, ".cmake"}
# All else of tests/ is in a folder: CONTRIBUTING.md has them.
ROOT_OF_TESTS = ("conftest.py", "test_smoke.py")
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
    "kGranule|granules_of_rows|granule_at|(half|store|to)_granule": "vec8, kVec8, vec8s_of_rows",
    "(Packed|Step|I)Factor|lanes_hold_factors": "PackedOperand, StepOperand, IFloat16, lanes_hold_operands",
    "MultiTensorPart": "MultiTensorChunk",
    "(Block|Strip|Tile)Place|scan_place|select_places|fragment_place": "BlockPosition, StripCoordinates, position",
    "is_last_part": "splits, keys_per_split",
    "kOrdered": "kDeterministic",
    "PlainOr|is_plain|are_modes_off": "DefaultDispatchOr, has_default_dispatch, no_mode_is_active",
    "run_apart": "run_via_temporary",
    "seldom": "cold, rarely",
    r"k(Most|Fewest|Least)[A-Z]\w*|kMost|kFewest": "kMax..., kMin...",
}
CHECKED_FOR_WORDS = {".cpp", ".h", ".slang", ".py", ".cmake", ".yaml"}
# The lists themselves.
LISTS_OF_WORDS = {"tools/check_structure.py", "tests/project/test_structure.py"}

# Files that comments name and that are not here: of PyTorch and others, or generated.
ELSEWHERE = {
    "native_functions.yaml",
    "derivatives.yaml",
    "common_mps.py",
    "distributed_test.py",
    "shim_mps.h",
    "test_mps.py",
    "test_torch.py",
    "test_torchinductor.py",
    "test_torchinductor_opinfo.py",
    "frameworks/pytorch/bench.py",  # of inferena
    "kernel.slang",  # a source from memory
    "zstd.h",
    "axpy_spirv.h",  # of an example's build
}
_FILE = re.compile(r"(?<![\w./*<>{}-])(?:[\w.-]+/)*[\w-]+\.(?:cpp|h|slang|py|yaml|md)\b(?!\.?\w|[*(])")
# Folders of PyTorch and of generated files; names in capitals stand for any.
_ELSEWHERE_BY_FOLDER = re.compile(r"(?:ATen|c10|torch|caffe2|anymps)/|(?:.*/)?[A-Z]{2,}[/_.]")

_WORDS = re.compile(r"\b(?:" + "|".join(f"(?P<w{i}>{old})" for i, old in enumerate(REFUSED)) + r")\b")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_IMPORT = re.compile(r'^\s*(?:(?:__exported\s+)?import\s+([\w.]+);|#\s*include\s+"([\w./]+)")', re.MULTILINE)
_LIBRARY = re.compile(r"\blib\.\w+")  # of shaders, as a generator names it
_TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")

# Comments, strings and preprocessor lines of C++ and Slang.
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_STRING = r'R"(?P<raw>\w*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
_STRINGS_AND_COMMENTS = re.compile(rf"(?P<comment>{_COMMENT})|{_STRING}", re.DOTALL)
_NO_CODE = re.compile(
    rf"{_COMMENT}|{_STRING}|(?<!\w)'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE
)
_TYPE = re.compile(r"\s*(?:\w+\s+)*?(?:struct|class|enum|union|interface|extension|namespace)\b")
_TEMPLATE_OR_ATTRIBUTE = re.compile(r"\s*(?:template\s*<[^;{}]*?>\s*(?=[\w\[])|\[[^\]]*\])")
# What may stand between a function and the comment above it.
_ABOVE = re.compile(r"\s*(?://|#|@|\[|template\b)")


def check(root: Path) -> list[str]:
    """All violations in the tree, as `path:line: sentence`."""
    found = []
    tests: dict[str, Path] = {}
    shaders: dict[str, Path] = {}
    importers: dict[str, set[Path]] = {}  # of modules of shaders/lib
    known = _partial_paths(root)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in LONG_LINES_CHECKED | CHECKED_FOR_WORDS and path.is_file():
                name = path.relative_to(root)
                text = path.read_text()
                rules = (*_lengths(path, text), *_includes(name, text), *_imports(name, text), *_words(name, text))
                rules = (*rules, *_long_functions(path, text), *_files_named(path, text, known))
                found += [f"{name}:{line}: {what}" for line, what in rules]
                if folder in ("shaders", "tools", "torch_anymps"):
                    targets = (
                        _LIBRARY.findall(text) if path.suffix == ".py" else [target for target, _ in _targets(text)]
                    )
                    for target in targets:
                        importers.setdefault(target, set()).add(name)
                # Headers' namespaces are named by files alone.
                if folder == "shaders" and (other := shaders.setdefault(path.stem, name)) != name:
                    found.append(f"{name}:1: {other} has the same name; names of shaders are unique.")
                if name.parts[:-1] == ("tests",) and path.suffix == ".py" and path.name not in ROOT_OF_TESTS:
                    found.append(f"{name}:1: files of tests are in folders, which CONTRIBUTING.md lists.")
                # pytest imports test files by their names alone.
                if path.match("test_*.py") and (other := tests.setdefault(path.name, name)) != name:
                    found.append(f"{name}:1: {other} has the same name, and pytest collects one of the two.")
    return found + _modules_of_one_family(shaders, importers)


def _modules_of_one_family(shaders: dict[str, Path], importers: dict[str, set[Path]]) -> list[str]:
    """A family is a folder of shaders, or a file beside them. What generators or other modules of lib import stays."""
    found = []
    for path in shaders.values():
        users = importers.get(f"lib.{path.stem}", set()) if path.parts[1] == "lib" else ()
        families = {user.parts[1] if user.parts[0] == "shaders" else user.parts[0] for user in users}
        if len(families) == 1 and not families & {"lib", "tools", "torch_anymps"}:
            found.append(
                f"{path}:1: only {', '.join(map(str, sorted(users)))} imports it; lib has what families share."
            )
    return found


def _targets(text: str) -> Iterator[tuple[str, int]]:
    """What a shader imports, and on which line."""
    for match in _IMPORT.finditer(text):
        target = match.group(1) or match.group(2).replace("/", ".").removesuffix(".slang")
        yield target, text.count("\n", 0, match.start(match.lastindex)) + 1


def _lengths(path: Path, text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    most = MOST_LINES.get(path.suffix)
    if most is not None and len(lines) > most:
        yield most + 1, f"the file has {len(lines)} lines; {path.suffix} files have at most {most}: split it."
    for number, line in enumerate(lines if path.suffix in LONG_LINES_CHECKED else [], 1):
        if len(line) > MOST_COLUMNS:
            yield number, f"the line has {len(line)} columns, {MOST_COLUMNS} are allowed."


def _long_functions(path: Path, text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    for first, last in _functions(path, text):
        above = first - 1
        while above and _ABOVE.match(lines[above - 1]):
            above -= 1
        if last - first < MOST_LINES_OF_A_FUNCTION or any(LONGER in line for line in lines[above : first - 1]):
            continue
        length = f"the function has {last - first + 1} lines, at most {MOST_LINES_OF_A_FUNCTION} are allowed"
        yield first, f'{length}: split it, or say above it why not ("{LONGER}...").'


def _functions(path: Path, text: str) -> Iterator[tuple[int, int]]:
    """First and last lines of the outermost functions, and of all functions of Python, without what decorates them."""
    if path.suffix == ".py":
        nodes = ast.walk(ast.parse(text))
        yield from ((n.lineno, n.end_lineno) for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    elif path.suffix in (".cpp", ".h", ".slang"):
        code = _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        changed = 1
        while changed:  # Braces of initial values.
            code, changed = re.subn(r"(?<=[\w>])\{([^{};]*)\}", r"(\1)", code)
        depth = start = 0
        inside = first = None
        for match in re.finditer(r"[{};]", code):
            if inside is None and match.group() == "{":
                begin = _begin_of_function(code, start, match.start())
                if begin is not None:
                    inside, first = depth, code.count("\n", 0, begin) + 1
            depth += {"{": 1, "}": -1, ";": 0}[match.group()]
            start = match.end()
            if inside == depth and match.group() == "}":
                yield first, code.count("\n", 0, start) + 1
                inside = None


def _begin_of_function(code: str, start: int, end: int) -> int | None:
    """Where the function starts whose body begins at `end`, if that is one; the sentence before it ends at `start`."""
    while match := _TEMPLATE_OR_ATTRIBUTE.match(code, start, end):
        start = match.end()
    head = code[start:end]
    outside, changed = re.sub(r"\boperator\s*[^\w\s(]+", "operator", head), 1
    while changed:
        outside, changed = re.subn(r"\([^()]*\)", " ", outside)
    if ")" not in head or "=" in outside or _TYPE.match(head):
        return None
    return start + len(head) - len(head.lstrip())


def _files_named(path: Path, text: str, known: set[str]) -> Iterator[tuple[int, str]]:
    for first, comment in _comments(path, text):
        for match in _FILE.finditer(comment):
            file = match.group()
            if file not in known and file not in ELSEWHERE and not _ELSEWHERE_BY_FOLDER.match(file):
                line = first + comment.count("\n", 0, match.start())
                yield line, f"the comment names {file}, which does not exist (of another project: ELSEWHERE)."


def _comments(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Comments with their first lines; docstrings too."""
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                yield node.body[0].lineno, node.body[0].value.value
    elif path.suffix in (".cpp", ".h", ".slang"):
        for match in _STRINGS_AND_COMMENTS.finditer(text):
            if match["comment"]:
                yield text.count("\n", 0, match.start()) + 1, match.group()
    else:
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line.partition("#")[2]


def _partial_paths(root: Path) -> set[str]:
    """Of the repository's files: full ones, and those that lack the first folders."""
    paths = set()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith((".", "build", "__pycache__"))]
        parts = Path(folder).relative_to(root).parts
        for begin in range(len(parts) + 1):
            paths.update("/".join((*parts[begin:], file)) for file in files)
    return paths


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
    for target, line in _targets(text):
        if target.rpartition(".")[0] not in allowed:
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
