"""The Slang library of the tests, and processes that have it open."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch

SCALE = """
import lib.dtype;
import lib.math;

struct Args { float* a; float* out; int64_t n; int64_t factor; }

[shader("compute")]
[numthreads(64, 1, 1)]
void main_kernel(uint3 group_id : SV_GroupID, uint thread : SV_GroupIndex, uniform Args args)
{
    int64_t i = int64_t(group_id.x) * 64 + thread;
    if (i < args.n)
        args.out[i] = args.a[i] * float(args.factor);
}
"""


def slang_library() -> str:
    """Path of the Slang library in the slangpy package, which is not imported."""
    [folder] = importlib.util.find_spec("slangpy").submodule_search_locations
    [library] = pathlib.Path(folder).glob("libslang-compiler.so*")
    return str(library)


def slang_folders() -> list[str]:
    """The folder of Slang sources beside the core library."""
    [library] = [path for path in torch.ops.loaded_libraries if "libtorch_anymps_" in path]
    return [str(pathlib.Path(library).parent / "shaders")]


@pytest.fixture(scope="session")
def slang(mps) -> str:
    """Slang's version; the library is open."""
    return torch.ops.anymps.open_slang(slang_library(), slang_folders())


@pytest.fixture
def in_new_process(run_python, tmp_path):
    """Runs Python lines in a process with the Slang library open, `ops` being torch.ops.anymps, `scale` a source; the
    caches are in tmp_path. Returns what it prints."""

    def run(lines: str, **env: str) -> str:
        begin = (
            f"import torch; ops = torch.ops.anymps; scale = {SCALE!r}\n"
            f"ops.open_slang({slang_library()!r}, {slang_folders()!r})\n"
        )
        done = run_python(begin + lines, env={"ANYMPS_CACHE_DIR": str(tmp_path / "cache"), **env})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
