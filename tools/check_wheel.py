#!/usr/bin/env python3
"""Checks wheels before they are released: what they hold, and what they need of a machine.

    check_wheel.py dist/*.whl [--versions 2.13 2.14]

Prints a line a wheel, then one a violation, and exits with 1 when there is any.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import json
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import wheel_platform
from wheel_platform import Elf

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 40_000_000
# Libraries that every manylinux machine has (PEP 599), and those of the PyTorch that is there.
SYSTEM = re.compile(r"lib(c|m|gcc_s|stdc\+\+|dl|pthread|rt)\.so\.\d+|ld-linux-(x86-64|aarch64)\.so\.\d")
TORCH = {"libtorch_cpu.so", "libtorch_python.so", "libc10.so"}
PYTHON = re.compile(r"_?Py[A-Z_]\w*")


def violations(wheel: Path, versions: list[str] | None = None) -> list[str]:
    """Sentences; empty for a wheel that may be released. versions: of PyTorch, by default all that METADATA allows."""
    try:
        elves = wheel_platform.libraries(wheel)
        platform, newest = wheel_platform.platform_of(elves)
    except wheel_platform.PlatformError as error:
        return [str(error)]
    found = []
    if not wheel.stem.endswith(f"-{platform}"):
        found.append(f"The name should end in {platform}, as {newest} is needed.")
    if wheel.stat().st_size > MAX_BYTES:
        found.append(f"It has {wheel.stat().st_size} bytes; {MAX_BYTES} are allowed.")
    for name, elf in elves.items():
        found += [f"{name} {what}" for what in _library_violations(name, elf)]
    with zipfile.ZipFile(wheel) as archive:
        found += _record_violations(archive)
        metadata = Parser().parsestr(archive.read(_member(archive, "METADATA")).decode())
        names = archive.namelist()
        for member in names:
            if member.endswith(".cdx.json") and json.loads(archive.read(member)).get("bomFormat") != "CycloneDX":
                found.append(f"{member} is no bill of materials.")
    expected = {"torch_anymps/kernels.bin"}
    allowed = _minors(metadata.get_all("Requires-Dist", []))
    for minor in [version.replace(".", "_") for version in versions] if versions else allowed:
        folder = f"torch_anymps-{metadata['Version']}.dist-info/sboms"
        expected |= {
            f"torch_anymps/libtorch_anymps_{minor}.so",
            f"torch_anymps/_launcher_{minor}.abi3.so",
            f"{folder}/torch_anymps_{minor}.cdx.json",
        }
    found += [f"{name} is missing." for name in sorted(expected - set(names))]
    found += [f"{name} is not expected." for name in sorted(set(elves) - expected)]
    if metadata["Version"] != _version():
        found.append(f"METADATA says version {metadata['Version']}, torch_anymps/__init__.py {_version()}.")
    if not any(re.search(r"\.dist-info/licenses/NOTICE", name) for name in names):
        found.append("The licenses of what is compiled in (NOTICE) are missing.")
    return found


def _library_violations(name: str, elf: Elf) -> list[str]:
    found = [f"needs {other}." for other in elf.needed if not SYSTEM.fullmatch(other) and other not in TORCH]
    found += [f"looks for libraries in {path}." for path in elf.run_paths]
    python = {symbol for symbol in elf.undefined if PYTHON.fullmatch(symbol)}
    if python and ".abi3." not in name:
        found.append(f"calls Python ({min(python)}) and is not named for the stable ABI.")
    return found


def _record_violations(archive: zipfile.ZipFile) -> list[str]:
    record = _member(archive, "RECORD")
    rows = {name: (digest, size) for name, digest, size in csv.reader(archive.read(record).decode().splitlines())}
    found = [f"{name} and RECORD disagree." for name in set(archive.namelist()) ^ set(rows)]
    for name, (digest, size) in rows.items():
        if name != record and name in archive.namelist():
            content = archive.read(name)
            actual = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            if (digest, size) != (f"sha256={actual}", str(len(content))):
                found.append(f"{name} is not what RECORD says.")
    return found


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return next(member for member in archive.namelist() if member.endswith(f".dist-info/{name}"))


def _minors(requirements: list[str]) -> list[str]:
    """The versions of PyTorch in a requirement "torch>=2.13,<2.16": ["2_13", "2_14", "2_15"]."""
    for requirement in requirements:
        if match := re.fullmatch(r"torch\s*\(?([^;()]*)\)?", requirement):
            first = re.search(r">=(\d+)\.(\d+)", match[1])
            last = re.search(r"<(\d+)\.(\d+)", match[1])
            if first and last:
                return [f"{first[1]}_{minor}" for minor in range(int(first[2]), int(last[2]))]
    return []


def _version() -> str:
    return re.search(r'^__version__ = "(.*)"$', (ROOT / "torch_anymps" / "__init__.py").read_text(), re.MULTILINE)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--versions", nargs="*", help="of PyTorch that there must be a library for: 2.13 2.14")
    arguments = parser.parse_args()
    failed = False
    for wheel in arguments.wheels:
        found = violations(wheel, arguments.versions)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(found)} violations", flush=True)
        print("".join(f"  {sentence}\n" for sentence in found), end="")
        failed |= bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
