"""Every kernel through the compilers that Mesa has for GPUs, none of which needs to be there (make test-compilers).

AMD's: RADV_FORCE_FAMILY makes the driver a null device that compiles everything and runs nothing. Intel's, Qualcomm's
and Apple's compile above a library that stands for the kernel's part of the driver: Mesa's source has these, and builds
them with -Dtools=drm-shim,intel,freedreno,asahi. ANYMPS_DRM_SHIMS names a folder with lib*_noop_drm_shim.so.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import pathlib
from dataclasses import dataclass, field

import pytest

MOST_LANES = 64  # kernels read ballots as 64 bits


@dataclass(frozen=True)
class Compiler:
    driver: str  # of Mesa, by the name of its file in icd.d
    name: str  # part of the device's
    spills: tuple[str, ...]  # the statistic that tells of them, by the names that versions have for it
    env: dict[str, str] = field(default_factory=dict)
    shim: str | None = None
    forbidden: str | None = None  # a statistic that must be 0


def amd(family):
    # Registers of a lane go to memory. Those of a subgroup (SGPRs) go to lanes of a vector register, which is cheap.
    env = {"RADV_FORCE_FAMILY": family}
    return Compiler("radeon", "RADV", ("Spilled SGPRs",), env, None, "Spilled VGPRs")


def intel(platform):
    env = {"INTEL_STUB_GPU": "1", "INTEL_STUB_GPU_PLATFORM": platform}
    return Compiler("intel", "Intel", ("Spills", "Spill Count"), env, "intel")


def qualcomm(number):
    return Compiler("freedreno", "Adreno", ("STP Count",), {"FD_GPU_ID": number}, "freedreno")


AMD = ("polaris10", "vega10", "navi10", "navi21", "navi31", "gfx1150", "gfx1151")
COMPILERS = {family: amd(family) for family in AMD}
COMPILERS |= {platform: intel(platform) for platform in ("skl", "tgl", "dg2", "bmg")}
COMPILERS |= {f"adreno{number}": qualcomm(number) for number in ("730", "750")}
COMPILERS["m1"] = Compiler("asahi", "Apple", ("Spills",), {}, "asahi")

pytestmark = pytest.mark.compilers


@pytest.fixture(scope="module")
def table(request):
    """Lines of a table that is printed at the end."""
    lines = ["| GPU | lanes | kernels | kernels that spill | worst |", "|---|---|---|---|---|"]
    yield lines
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


def preloaded(shim):
    folder = os.environ.get("ANYMPS_DRM_SHIMS")
    if folder is None:
        pytest.skip("ANYMPS_DRM_SHIMS names no folder with Mesa's drm shims")
    library = pathlib.Path(folder) / f"lib{shim}_noop_drm_shim.so"
    assert library.exists(), f"{library} is missing"
    return str(library)


@pytest.fixture
def run_above(run_python, tmp_path):
    """Runs a program of this folder on the compiler for a GPU; skips where this machine lacks it."""

    def run(compiler, program, **env):
        drivers = glob.glob(f"/usr/share/vulkan/icd.d/{compiler.driver}_icd*.json")
        if compiler.shim is None:
            assert drivers, f"Mesa's driver {compiler.driver} is not installed (package mesa-vulkan-drivers)"
        else:
            env["LD_PRELOAD"] = preloaded(compiler.shim)
            if not drivers:
                pytest.skip(f"this machine's Mesa has no driver {compiler.driver}")
        env |= compiler.env
        env |= {"VK_DRIVER_FILES": drivers[0], "VK_ICD_FILENAMES": drivers[0], "ANYMPS_CACHE_DIR": str(tmp_path)}
        done = run_python(pathlib.Path(__file__).parent / program, env=env, timeout=3600)
        assert done.returncode == 0, done.stderr[-2000:]
        return done

    return run


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gpu", COMPILERS)
def test_the_compiler_builds_every_kernel(gpu, run_above, table):
    compiler = COMPILERS[gpu]
    # What comes from Mesa's cache has no statistics.
    done = run_above(compiler, "kernel_builds.py", ANYMPS_PIPELINE_STATISTICS="1", MESA_SHADER_CACHE_DISABLE="true")
    result = json.loads(done.stdout.splitlines()[-1])
    assert compiler.name in result["device"] and len(result["statistics"]) > 500
    assert result["subgroup_size"] <= MOST_LANES
    assert not result["failed"]
    kernels = {
        name: values
        for name, values in result["statistics"].items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in result["excluded"])
    }
    if compiler.forbidden is not None:
        assert not [name for name, values in kernels.items() if values[compiler.forbidden] > 0]
    label = next(name for name in compiler.spills if name in next(iter(kernels.values())))
    spills = sorted(((values[label], name) for name, values in kernels.items()), reverse=True)
    spilling = [item for item in spills if item[0] > 0]
    worst = ", ".join(f"`{name}` {count:.0f}" for count, name in spilling[:3])
    table.append(f"| {gpu} | {result['subgroup_size']} | {len(kernels)} | {len(spilling)} | {worst} |")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gpu", COMPILERS)
def test_generated_kernels_do_not_spill(gpu, run_above):
    """Those of torch.compile: element-wise ones, and rows and columns, with gradients."""
    compiler = COMPILERS[gpu]
    env = {"ANYMPS_PIPELINE_STATISTICS": "1", "MESA_SHADER_CACHE_DISABLE": "true"}
    result = json.loads(run_above(compiler, "generated_builds.py", **env).stdout.splitlines()[-1])
    assert compiler.name in result["device"] and len(result["statistics"]) > 25
    label = next(name for name in compiler.spills if name in next(iter(result["statistics"].values())))
    spills = [label] if compiler.forbidden is None else [label, compiler.forbidden]
    assert not [name for name, values in result["statistics"].items() if any(values[s] > 0 for s in spills)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gpu", [name for name, compiler in COMPILERS.items() if compiler.shim is not None])
def test_what_operators_launch_is_valid(gpu, run_above):
    """Sizes of workgroups and subgroups, shared memory and constants as operators choose them, within what the device
    allows: the validation layer says nothing. AMD's null device has no memory to launch with."""
    done = run_above(COMPILERS[gpu], "null_launches.py", VK_INSTANCE_LAYERS="VK_LAYER_KHRONOS_validation")
    result = json.loads(done.stdout.splitlines()[-1])
    assert COMPILERS[gpu].name in result["device"] and result["launched"] > 100
    assert not result["errors"]
    assert "VUID" not in done.stdout + done.stderr
