#!/usr/bin/env python3
"""The platform tag of a wheel, computed from what its compiled files need.

    wheel_platform.py dist/*.whl

Prints a line a wheel: the tag, and the symbol version that decides it. manylinux_2_35_x86_64 says: glibc 2.35 or newer,
and the libstdc++ and libgcc that the distributions with that glibc have (PEP 600).
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}
# The newest versions of symbols that every distribution with glibc 2.N has, as {newest version: N}; facts of auditwheel
# (PyPA), whose policies are those of the distributions.
BASELINES = {
    "GLIBCXX_3.4": {19: 17, 22: 24, 24: 27, 28: 31, 29: 34, 30: 35, 33: 39},
    "CXXABI_1.3": {7: 17, 10: 24, 11: 27, 12: 31, 13: 34, 15: 39},
    "GCC": {4: 17, 7: 27, 11: 34, 12: 35, 14: 39},
}
NAMED = {"GLIBC_ABI_DT_RELR": 36}


class PlatformError(Exception):
    """A whole sentence, shown without a traceback."""


@dataclass
class Elf:
    """What the dynamic section of a 64-bit little-endian ELF file says."""

    machine: str
    needed: list[str] = field(default_factory=list)
    run_paths: list[str] = field(default_factory=list)
    versions: dict[str, set[str]] = field(default_factory=dict)  # by library: {"libc.so.6": {"GLIBC_2.34", ...}}
    undefined: set[str] = field(default_factory=set)  # symbols that other files define


# Tags of the dynamic section.
_NEEDED, _STRTAB, _SYMTAB, _RPATH, _RUNPATH, _VERNEED, _VERNEEDNUM = 1, 5, 6, 15, 29, 0x6FFFFFFE, 0x6FFFFFFF
_PT_LOAD, _PT_DYNAMIC, _SHT_DYNSYM = 1, 2, 11


def read_elf(content: bytes) -> Elf:
    """Raises PlatformError for anything but a shared library of x86-64 or aarch64."""
    if content[:6] != b"\x7fELF\x02\x01" or len(content) < 64:
        raise PlatformError("This is no 64-bit little-endian ELF file.")
    machine = struct.unpack_from("<H", content, 18)[0]
    if machine not in MACHINES:
        raise PlatformError(f"ELF machine {machine} is none of {', '.join(MACHINES.values())}.")
    segments_at, sections_at = struct.unpack_from("<QQ", content, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<4H", content, 54)
    segments = [struct.unpack_from("<IIQQQQ", content, segments_at + i * segment_size) for i in range(segment_count)]
    loads = [(address, size, offset) for kind, _, offset, address, _, size in segments if kind == _PT_LOAD]

    def offset_of(address: int) -> int:
        return next(address - start + offset for start, size, offset in loads if start <= address < start + size)

    dynamic: list[tuple[int, int]] = []
    for kind, _, offset, _, _, size in segments:
        if kind == _PT_DYNAMIC:
            dynamic = list(struct.iter_unpack("<qQ", content[offset : offset + size]))
    values = dict(dynamic)
    if _STRTAB not in values:
        raise PlatformError("This ELF file is no shared library.")
    strings = offset_of(values[_STRTAB])

    def text(index: int) -> str:
        return content[strings + index : content.index(b"\0", strings + index)].decode()

    elf = Elf(MACHINES[machine])
    elf.needed = [text(value) for tag, value in dynamic if tag == _NEEDED]
    elf.run_paths = [text(value) for tag, value in dynamic if tag in (_RPATH, _RUNPATH)]
    at = offset_of(values[_VERNEED]) if _VERNEED in values else 0
    for _ in range(values.get(_VERNEEDNUM, 0)):
        _, count, file, first, following = struct.unpack_from("<HHIII", content, at)
        entry = at + first
        for _ in range(count):
            name, step = struct.unpack_from("<II", content, entry + 8)
            elf.versions.setdefault(text(file), set()).add(text(name))
            entry += step
        at += following
    for i in range(section_count):
        kind, offset, size = struct.unpack_from("<4xI16xQQ", content, sections_at + i * section_size)
        if kind == _SHT_DYNSYM:
            symbols = struct.iter_unpack("<IBBHQQ", content[offset : offset + size])
            elf.undefined = {text(name) for name, _, _, section, _, _ in symbols if name and not section}
    return elf


def baseline(version: str) -> int:
    """The N of the oldest glibc 2.N whose distributions have a symbol version: 35 of "GLIBCXX_3.4.30".

    Raises PlatformError for a version that is newer than the table, or not of these families.
    """
    if version in NAMED:
        return NAMED[version]
    if match := re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)*", version):
        return max(int(match[1]), 17)  # the oldest that PyTorch has wheels for
    for family, table in BASELINES.items():
        if match := re.fullmatch(re.escape(family) + r"[._]?(\d*)(\.\d+)*", version):
            found = [n for newest, n in table.items() if int(match[1] or 0) <= newest]
            if found:
                return min(found)
    raise PlatformError(f"The symbol version {version} is not in the table of {Path(__file__).name}.")


def libraries(wheel: Path) -> dict[str, Elf]:
    """The compiled files of a wheel by name."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.search(r"\.so(\.\d+)*$", name):
                try:
                    found[name] = read_elf(archive.read(name))
                except PlatformError as error:
                    raise PlatformError(f"{wheel.name}: {name}: {error}") from None
    return found


def platform_of(elves: dict[str, Elf]) -> tuple[str, str]:
    """The tag and the symbol version that decides it. Raises PlatformError where files are of two machines, or none."""
    machines = sorted({elf.machine for elf in elves.values()})
    if len(machines) != 1:
        raise PlatformError(f"The compiled files are for {' and '.join(machines) or 'no machine'}.")
    # The dynamic loader's and PyTorch's libraries have no versions that a machine must have.
    system = re.compile("GLIBC|GLIBCXX|CXXABI|GCC")
    needs = {name for elf in elves.values() for names in elf.versions.values() for name in names if system.match(name)}
    newest = max(needs, key=lambda name: (baseline(name), name), default="GLIBC_2.17")
    return f"manylinux_2_{baseline(newest)}_{machines[0]}", newest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+")
    try:
        for wheel in parser.parse_args().wheels:
            print(f"{wheel.name}: {' for '.join(platform_of(libraries(wheel)))}")
    except PlatformError as error:
        print(f"wheel_platform: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
