"""A build folder of this checkout: its programs, and the C++ compiler as it was configured."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# After a launcher such as ccache; Debian's Python names x86_64-linux-gnu-g++.
_COMPILER = re.compile(r"([\w.-]+-)?(c|g|clang)\+\+(-\d+)?")


def newest_build() -> Path | None:
    """build/ of a developer, build/<environment> of `make build`."""
    found = [*ROOT.glob("build/bin/shader_compiler"), *ROOT.glob("build/*/bin/shader_compiler")]
    return max(found, key=lambda path: path.stat().st_mtime).parent.parent if found else None


def compiler_flags(build: Path, source: str) -> list[str]:
    """The C++ compiler and its flags for a source of csrc."""
    commands = json.loads((build / "compile_commands.json").read_text())
    flags = next(shlex.split(c["command"]) for c in commands if c["file"].endswith(f"csrc/{source}"))
    flags = flags[next(i for i, flag in enumerate(flags) if _COMPILER.fullmatch(Path(flag).name)) :]
    return flags[: flags.index("-o")]
