"""Subgroups of as many lanes as GPUs have, where software drivers have 8: other files' tests, with the kernels of such
a GPU (make test-lanes). Any lavapipe can do up to 16; more takes the one of tools/wide_lavapipe.sh, whose file for
VK_DRIVER_FILES ANYMPS_WIDE_LAVAPIPE names."""

from __future__ import annotations

import os

import pytest
from device_profiles import environment, layer_folder
from test_gpu_kernels import CASES

LANE_BITS = 32
WITHOUT_LIMITS = os.environ.get("ANYMPS_WIDE_LAVAPIPE")
GPUS = {"arc_a770": 16, "apple_m1": 32, "rdna2_rebar": 64, "adreno_750": 64}

pytestmark = [
    pytest.mark.lanes,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(layer_folder() is None, reason="the layer is not built (cmake -DANYMPS_BUILD_TESTS=ON)"),
]


def variables(gpu: str, folder) -> dict[str, str]:
    """Of a process in which the software driver has the lanes of a GPU, and is that GPU otherwise."""
    lanes = GPUS[gpu]
    env = environment(gpu, folder) | {"LP_NATIVE_VECTOR_WIDTH": str(lanes * LANE_BITS)}
    if lanes > 16:
        if WITHOUT_LIMITS is None:
            pytest.skip("ANYMPS_WIDE_LAVAPIPE names no lavapipe with more than 16 lanes")
        env |= {"VK_DRIVER_FILES": WITHOUT_LIMITS, "VK_ICD_FILENAMES": WITHOUT_LIMITS}
    # What lavapipe has compiled for other lanes must not be found.
    return env | {"MESA_SHADER_CACHE_DIR": str(folder / "cache")}


LANES = """
import json, torch
SOURCE = '''
[shader("compute")] [numthreads(128, 1, 1)]
void lanes(uniform int* out, uint3 id : SV_DispatchThreadID)
{
    let lane = WaveGetLaneIndex();
    out[id.x * 4] = int(WaveReadLaneAt(lane, WaveGetLaneCount() - 1 - lane));
    out[id.x * 4 + 1] = int(WaveActiveSum(lane));
    let ballot = WaveActiveBallot(lane % 3 == 0);
    out[id.x * 4 + 2] = int(countbits(ballot.x) + countbits(ballot.y));
    out[id.x * 4 + 3] = int(WavePrefixSum(1u));
}
'''
count = json.loads(torch.ops.anymps.device_info())["subgroup_size"]
out = torch.zeros(128, 4, dtype=torch.int32, device="mps")
torch.mps.compile_shader(SOURCE).lanes(out, threads=128)
lane = torch.arange(128, dtype=torch.int32) % count
expected = [count - 1 - lane, lane * 0 + count * (count - 1) // 2, lane * 0 + (count + 2) // 3, lane]
assert torch.equal(out.cpu(), torch.stack(expected, 1)), out
print(count)
"""


@pytest.mark.parametrize("gpu", GPUS)
def test_the_driver_has_these_lanes(gpu, run_python, tmp_path):
    result = run_python(LANES, env=variables(gpu, tmp_path))
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) == GPUS[gpu]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("file, tests", CASES)
def test_kernels(gpu, file, tests, passes, tmp_path):
    passes(file, tests, timeout=3500, **variables(gpu, tmp_path))  # the wider, the longer the driver compiles
