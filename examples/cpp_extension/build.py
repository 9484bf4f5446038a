"""Builds axpy.cpp into a library that torch.ops.load_library() takes: python build.py [folder]."""

import pathlib
import subprocess
import sys

from torch.utils.cpp_extension import include_paths, library_paths

import torch_anymps

HERE = pathlib.Path(__file__).parent


def build(folder: pathlib.Path) -> pathlib.Path:
    """The library in `folder`. Its kernel is compiled here, so that its users need no Slang compiler."""
    [(name, spirv)] = torch_anymps.compile_spirv((HERE / "axpy.slang").read_text()).items()
    words = ", ".join(f"{int.from_bytes(spirv[i : i + 4], 'little'):#x}" for i in range(0, len(spirv), 4))
    (folder / "axpy_spirv.h").write_text(f"#include <cstdint>\nconstexpr uint32_t {name}_spirv[] = {{{words}}};\n")
    library = folder / "axpy.so"
    folders = [f"-I{path}" for path in [folder, *torch_anymps.include_paths(), *include_paths()]]
    links = [*(f"-L{path}" for path in library_paths()), "-ltorch_cpu", "-lc10"]
    options = ["-std=c++20", "-O2", "-shared", "-fPIC", "-DAT_PER_OPERATOR_HEADERS"]
    subprocess.run(["g++", *options, *folders, str(HERE / "axpy.cpp"), "-o", str(library), *links], check=True)
    return library


if __name__ == "__main__":
    import torch

    torch.ops.load_library(build(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
    x = torch.arange(5.0, device="mps")
    print(torch.ops.example.axpy(2.0, x, torch.ones_like(x)))
