#!/usr/bin/env python3
"""Checks the shape of the tree: which way includes go, no PyTorch in csrc/vulkan, lengths of files and lines.

    check_structure.py [folder]     the root of a checkout; this one's by default

Prints one line a violation and exits with 1 when there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS = ("vulkan", "runtime", "kernels", "ops")  # a file includes its own layer and those to the left
MOST_LINES = {".cpp": 600, ".h": 600, ".slang": 300, ".py": 400}
MOST_COLUMNS = 120
LONG_LINES_CHECKED = {*MOST_LINES, ".cmake"}
FOLDERS = ("csrc", "shaders", "torch_anymps", "tools", "tests", "benchmarks", "examples", "cmake")

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")


def check(root: Path) -> list[str]:
    """All violations in the tree, as `path:line: sentence`."""
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in LONG_LINES_CHECKED and path.is_file():
                name = path.relative_to(root)
                text = path.read_text()
                found += [f"{name}:{line}: {what}" for line, what in (*_lengths(path, text), *_includes(name, text))]
    return found


def _lengths(path: Path, text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    most = MOST_LINES.get(path.suffix)
    if most is not None and len(lines) > most:
        yield most + 1, f"the file has {len(lines)} lines; {path.suffix} files have at most {most}: split it."
    for number, line in enumerate(lines, 1):
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
        if layer == "vulkan" and _TORCH.match(target):
            yield line, f"csrc/vulkan includes {target}; it has no PyTorch headers."


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
