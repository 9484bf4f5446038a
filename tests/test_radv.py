"""Every kernel through Mesa's AMD compiler, for several GPUs, none of which needs to be there (make test-radv).

RADV_FORCE_FAMILY makes the driver a null device that compiles everything and runs nothing.
"""

from __future__ import annotations

import glob
import json
import pathlib
import re

import pytest

FAMILIES = ("polaris10", "vega10", "navi10", "navi21", "navi31", "gfx1150", "gfx1151")
DRIVERS = glob.glob("/usr/share/vulkan/icd.d/radeon_icd*.json")

# Fragments laid out as NVIDIA's; csrc/ops/attention/flash.cpp and csrc/ops/conv have other kernels for AMD. And a
# convolution's largest tile, which csrc/ops/matmul/tiles.cpp leaves out there, and a tile for software drivers.
NOT_FOR_AMD = re.compile(
    r"flash_\w+_\d+_\d+x\d+x\d+_|conv_matrix_256x128x32_|matmul_halves_32x64_|"
    r"conv_(direct|panels|pairs|pairs_ahead|pair_panels|weight_lines|weight_rows)\d*_\d+x"
)

pytestmark = pytest.mark.radv


@pytest.fixture(scope="module")
def table(request):
    """Lines of a table that is printed at the end."""
    lines = ["| GPU | kernels | most VGPRs | kernels that spill SGPRs | worst |", "|---|---|---|---|---|"]
    yield lines
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_amd_compiler_builds_every_kernel(family, run_python, table, tmp_path):
    assert DRIVERS, "Mesa's AMD driver is not installed (package mesa-vulkan-drivers)"
    done = run_python(
        pathlib.Path(__file__).parent / "kernel_builds.py",
        env={
            "VK_DRIVER_FILES": DRIVERS[0],
            "VK_ICD_FILENAMES": DRIVERS[0],
            "RADV_FORCE_FAMILY": family,
            "ANYMPS_PIPELINE_STATISTICS": "1",
            "ANYMPS_CACHE_DIR": str(tmp_path),
        },
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert "RADV" in result["device"] and len(result["statistics"]) > 500
    assert not result["failed"]
    kernels = [item for item in result["statistics"].items() if not NOT_FOR_AMD.match(item[0])]
    # Registers of a lane go to memory. Those of a subgroup (SGPRs) go to lanes of a vector register, which is cheap.
    assert not [name for name, values in kernels if values["Spilled VGPRs"] > 0]
    registers = max(values["VGPRs"] for _, values in kernels)
    spills = sorted(((values["Spilled SGPRs"], name) for name, values in kernels), reverse=True)
    spilling = [item for item in spills if item[0] > 0]
    worst = ", ".join(f"`{name}` {count:.0f}" for count, name in spilling[:3])
    table.append(f"| {family} | {len(kernels)} | {registers:.0f} | {len(spilling)} | {worst} |")
