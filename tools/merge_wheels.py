#!/usr/bin/env python3
"""Makes one wheel of several that were built from one tree, each for another version of PyTorch.

    merge_wheels.py build/wheels/.venv-*/*.whl --out dist

What two of them hold under one name must be the same to the byte: the kernels' archive, the Python files. The libraries
bear PyTorch's version in their names and lie side by side in the result. Its platform tag is the one that they ask for
(wheel_platform.py): linux_x86_64 becomes manylinux_2_35_x86_64.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

import wheel_platform


class MergeError(Exception):
    """A whole sentence, shown without a traceback."""


def merge(wheels: list[Path], out: Path) -> Path:
    """Writes the wheel into the folder out, under the parts' name but for its platform.

    Raises MergeError where parts differ, PlatformError where no platform has what their libraries need.
    """
    members: dict[str, tuple[zipfile.ZipInfo, bytes, Path]] = {}
    if names := {wheel.name for wheel in wheels[1:]} - {wheels[0].name}:
        raise MergeError(f"{wheels[0].name} and {', '.join(sorted(names))} are not builds of one package.")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                content = archive.read(info)
                known = members.setdefault(info.filename, (info, content, wheel))
                if known[1] != content and not info.filename.endswith(".dist-info/RECORD"):
                    raise MergeError(f"{info.filename} differs between {known[2]} and {wheel}.")
    name = _set_platform(members, wheels[0].name)
    record = next(name for name in members if name.endswith(".dist-info/RECORD"))
    lines = [_record_line(name, content) for name, (_, content, _) in members.items() if name != record]
    info, _, _ = members.pop(record)
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out / name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for member, content, _ in members.values():
            archive.writestr(member, content, zipfile.ZIP_DEFLATED, 9)
        archive.writestr(info, "\n".join([*lines, f"{record},,", ""]), zipfile.ZIP_DEFLATED)
    return out / name


def _set_platform(members: dict[str, tuple[zipfile.ZipInfo, bytes, Path]], name: str) -> str:
    """Writes the platform into the WHEEL member of a compiled package; returns the wheel's name with it."""
    built = re.search(r"-(linux_[a-z0-9_]+)\.whl$", name)
    if built is None:
        return name
    libraries = {path: content for path, (_, content, _) in members.items() if path.endswith(".so")}
    platform, _ = wheel_platform.platform_of({p: wheel_platform.read_elf(c) for p, c in libraries.items()})
    member = next(path for path in members if path.endswith(".dist-info/WHEEL"))
    info, content, source = members[member]
    members[member] = info, content.replace(f"-{built[1]}\n".encode(), f"-{platform}\n".encode()), source
    return f"{name[: built.start(1)]}{platform}.whl"


def _record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    arguments = parser.parse_args()
    try:
        wheel = merge(arguments.wheels, arguments.out)
    except (MergeError, wheel_platform.PlatformError) as error:
        print(f"merge_wheels: {error}", file=sys.stderr)
        return 1
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
