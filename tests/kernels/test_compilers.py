"""Every kernel through the compilers that Mesa has for GPUs, none of which needs to be there (make test-compilers).

AMD's: RADV_FORCE_FAMILY makes the driver a null device that compiles everything and runs nothing. Intel's, Qualcomm's
and Apple's compile above a library that stands for the kernel's part of the driver: Mesa's source has these, and builds
them with -Dtools=drm-shim,intel,freedreno,asahi. ANYMPS_DRM_SHIMS names a folder with lib*_noop_drm_shim.so.
"""

from __future__ import annotations

import fnmatch
import json
import pathlib
import re

import pytest
import yaml
from gpu_compilers import COMPILERS

MOST_LANES = 64  # kernels read ballots as 64 bits

pytestmark = pytest.mark.compilers

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"


@pytest.fixture(scope="module")
def table(request):
    """Lines of a table that is printed at the end."""
    lines = ["| GPU | lanes | kernels | kernels that spill | worst |", "|---|---|---|---|---|"]
    yield lines
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


@pytest.fixture
def run_above(run_python, tmp_path):
    """Runs a program of tests/support on the compiler for a GPU; skips where this machine lacks it."""

    def run(compiler, program, *arguments, **env):
        try:
            env |= compiler.environment()
        except LookupError as error:
            pytest.skip(str(error))
        env |= {"ANYMPS_CACHE_DIR": str(tmp_path)}
        done = run_python(SUPPORT / program, *arguments, env=env, timeout=3600)
        assert done.returncode == 0, done.stderr[-2000:]
        return done

    return run


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gpu", COMPILERS)
def test_the_compiler_builds_every_kernel(gpu, run_above, table):
    compiler = COMPILERS[gpu]
    done = run_above(compiler, "kernel_builds.py")
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
    result = json.loads(run_above(compiler, "generated_builds.py").stdout.splitlines()[-1])
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


RESULTS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "results"
ALLOWED = yaml.safe_load((pathlib.Path(__file__).parent / "compilers_allowed.yaml").read_text())
WORSE = 1.1


def released(gpu):
    path = RESULTS / gpu / "models" / "network_kernels.json"
    return json.loads(path.read_text()) if path.exists() else None


def reason(kind, gpu, kernel):
    """Why a kernel may spill, or may have become worse: the first line of compilers_allowed.yaml that fits, or None."""
    for line in ALLOWED[kind] or ():
        if gpu in line["gpus"] and any(fnmatch.fnmatchcase(kernel, f"{name}[[]*") for name in line["kernels"]):
            return line["reason"]
    return None


def mesa(driver):
    """The version that its compilers change with."""
    return re.search(r"Mesa (\d+\.\d+)", driver)[1]


def worse(compiler, before, now):
    """Statistics by which a kernel is more than a tenth worse; registers in memory count from the first."""
    more = [name for name in compiler.costs if now[name] > WORSE * before[name]]
    return more + [name for name in compiler.gains if before[name] > WORSE * now[name]]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gpu", [gpu for gpu in COMPILERS if released(gpu)])
def test_kernels_that_carry_networks_are_as_good_as_released(gpu, run_above):
    """By the files of benchmarks/models/network_kernels.py, which each release renews."""
    compiler, before = COMPILERS[gpu], released(gpu)
    rows = {name: dict(zip(before["columns"], figures)) for name, figures in before["rows"].items()}
    result = json.loads(run_above(compiler, "kernel_builds.py", *rows).stdout.splitlines()[-1])
    if mesa(result["driver"]) != mesa(before["device"]["driver"]):
        pytest.skip(f"the figures are of {before['device']['driver']}, and this is {result['driver']}")
    assert not result["failed"]
    found = {name: worse(compiler, rows[name], values) for name, values in result["statistics"].items()}
    assert not {name: what for name, what in found.items() if what and not reason("worse", gpu, name)}


@pytest.mark.parametrize("gpu", [gpu for gpu in COMPILERS if released(gpu)])
def test_kernels_that_carry_networks_do_not_spill(gpu):
    """... but for those whose line says why nothing better is known; a line that no kernel needs is to go."""
    compiler, result = COMPILERS[gpu], released(gpu)
    rows = {name: dict(zip(result["columns"], figures)) for name, figures in result["rows"].items()}
    spilling = [name for name, figures in rows.items() if compiler.spilled(figures) > 0]
    assert not [name for name in spilling if not reason("spills", gpu, name)]
    needed = {reason("spills", gpu, name) for name in spilling}
    assert {line["reason"] for line in ALLOWED["spills"] if gpu in line["gpus"]} <= needed


def test_a_kernel_that_became_worse_is_found():
    compiler = COMPILERS["navi31"]
    before = dict.fromkeys((*compiler.costs, *compiler.gains), 100.0)
    assert worse(compiler, before, before | {"VGPRs": 109, "Subgroups per SIMD": 92}) == []
    assert worse(compiler, before, before | {"VGPRs": 111, "Subgroups per SIMD": 90}) == ["VGPRs", "Subgroups per SIMD"]
    assert worse(compiler, before | {"Spilled VGPRs": 0}, before | {"Spilled VGPRs": 1}) == ["Spilled VGPRs"]
