#!/usr/bin/env python3
"""Shows that two builds have the same kernels: their SPIR-V is compared, names left out.

    compare_spirv.py BEFORE AFTER [--renamed OLD=NEW]...

BEFORE, AFTER: a kernels.bin, a site directory that holds one, or a directory of *.spv files (`shader_compiler
--spirv`). OLD=NEW: what kernels are called differently: a whole name, or a regular expression with its replacement.
Left out are names and sources (OpName, OpMemberName, OpString, OpSource, OpLine ...) and the entry point's name; all
else must be equal word for word. Prints one line a difference and exits with 1 when there is any.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAGIC = 0x07230203
HEADER_WORDS = 5
# Numbers of the SPIR-V specification, section 3.52: OpSourceContinued .. OpLine, OpNoLine, OpModuleProcessed.
DEBUG = {2, 3, 4, 5, 6, 7, 8, 317, 330}
OP_ENTRY_POINT = 15


def without_names(words: array[int]) -> list[tuple[int, ...]]:
    """The header and the instructions of a module that are more than names. Raises ValueError for other words."""
    if len(words) < HEADER_WORDS or words[0] != MAGIC:
        raise ValueError("no SPIR-V module")
    result = [tuple(words[:HEADER_WORDS])]
    at = HEADER_WORDS
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        if count == 0 or at + count > len(words):
            raise ValueError(f"a damaged SPIR-V module: instruction {opcode} at word {at}")
        operands = tuple(words[at + 1 : at + count])
        if opcode == OP_ENTRY_POINT:  # execution model, function, name (ended by a word with a zero byte), interface
            end = next(i for i in range(2, len(operands)) if operands[i] >> 24 == 0)
            result.append((opcode, *operands[:2], *operands[end + 1 :]))
        elif opcode not in DEBUG:
            result.append((opcode, *operands))
        at += count
    return result


def kernels_of(path: Path) -> dict[str, array[int]]:
    """SPIR-V by kernel name. Raises SystemExit where `path` holds none."""
    if path.is_dir():
        modules = sorted(path.rglob("*.spv"))
        if modules:
            return {module.stem: array("I", module.read_bytes()) for module in modules}
        archives = sorted(path.rglob("kernels.bin"))
        if len(archives) != 1:
            raise SystemExit(f"{path} holds {len(archives)} kernels.bin and no .spv: name a file.")
        path = archives[0]
    if not path.is_file():
        raise SystemExit(f"{path} does not exist.")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([_compiler(path), "--unpack", path, "--spirv", folder], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip())
        return {module.stem: array("I", module.read_bytes()) for module in Path(folder).glob("*.spv")}


def _compiler(archive: Path) -> Path:
    """The shader compiler, which unpacks archives: that of the archive's build folder, else the checkout's newest."""
    own = archive.resolve().parent.parent.parent / "bin" / "shader_compiler"
    others = sorted(ROOT.glob("build/*/bin/shader_compiler"), key=lambda file: file.stat().st_mtime, reverse=True)
    for compiler in (own, *others):
        if compiler.is_file():
            return compiler
    raise SystemExit(f"{ROOT}/build has no shader_compiler to unpack {archive}; compare .spv files.")


def new_name(name: str, renamed: list[tuple[str, str]]) -> str:
    for old, new in renamed:
        name = new if name == old else re.sub(old, new, name)
    return name


def differences(before: dict[str, array[int]], after: dict[str, array[int]], renamed: list[tuple[str, str]]):
    """One line a kernel that is missing, new or different."""
    expected = {new_name(name, renamed): name for name in before}
    if len(expected) != len(before):
        yield "two kernels get the same new name."
    for name in sorted(expected.keys() - after.keys()):
        yield f"{expected[name]}: no kernel {name} after."
    for name in sorted(after.keys() - expected.keys()):
        yield f"{name}: no such kernel before."
    for name in sorted(expected.keys() & after.keys()):
        if before[expected[name]] == after[name]:
            continue
        one, other = without_names(before[expected[name]]), without_names(after[name])
        if one == other:
            continue
        pairs = enumerate(zip(one, other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
        shown = [" ".join(map(str, some[at])) if at < len(some) else "the end" for some in (one, other)]
        yield f"{name}: {len(one)} and {len(other)} instructions, different from number {at} on: {' | '.join(shown)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    arguments = parser.parse_args()
    renamed = [(old, new) for old, _, new in (pair.partition("=") for pair in arguments.renamed)]
    before, after = kernels_of(arguments.before), kernels_of(arguments.after)
    found = list(differences(before, after, renamed))
    print("\n".join(found) if found else f"{len(before)} kernels are the same.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
