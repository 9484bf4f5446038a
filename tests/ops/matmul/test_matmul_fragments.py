"""Products of 16-bit factors that are stored as fragments of matrix units before, against float64 on the CPU.

On a GPU the sizes are those from which that pays; a software driver does so with ANYMPS_TILES=gpu
(tests/kernels/test_gpu_tiles.py), for float16. Whatever multiplies, these hold.
"""

from __future__ import annotations

import json
import os

import pytest
import torch
from test_matmul import check
from test_matmul_scaled import BATCHES, LAYOUTS, batched, check_all_tiles

import torch_anymps

pytestmark = pytest.mark.usefixtures("poisoned_memory")

TYPES = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def sizes(software):
    """Rows, columns and k: none a multiple of a tile."""
    return (200, 170, 203) if software else (2500, 2301, 1203)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, dtype, sizes):
    function, shapes = LAYOUTS[layout]
    check(function, *[torch.randn(shape) for shape in shapes(*sizes)], dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", BATCHES)
def test_batches(form, dtype, sizes):
    check(*batched(form, *sizes), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_parts_of_k(dtype, sizes):
    """The last part is no multiple of 64, and what pads it meets infinities of no other."""
    check(torch.mm, torch.randn(160, 9010), torch.randn(9010, 190), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("k", [256, 1024, 8192])
def test_last_tiles_are_shared(k, dtype, software):
    """Numbers of tiles that leave one wave of an H200 with 6, 24 or 120 of 264 tiles, and of a CPU with one of two."""
    m, n = (288, 180) if software else {256: (8192, 4224), 1024: (8192, 768), 8192: (3072, 768)}[k]
    a, b, c = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    check(torch.nn.functional.linear, a, b, c, dtype=dtype, magnitude=lambda a, b, c: a @ b.t() + c)
    if software:
        check(torch.mm, torch.randn(416, k - 40), torch.randn(k - 40, 192), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("k", [64, 128, 192, 1216])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "batches"])
def test_all_tiles(layout, k, dtype, software):
    """While tiles are tuned, calls try every tile in turn, those that take words of eight elements and 64 k, too."""
    m, n = (200, 168) if software else (2504, 2296)
    if layout == "batches":
        function, shapes = torch.baddbmm, lambda m, n, k: [(n,), (3, m, k), (3, k, n)]
    else:
        function, shapes = LAYOUTS[layout]
    trials = check_all_tiles(function, *[torch.randn(shape) for shape in shapes(m, n, k)], calls=16, dtype=dtype)
    units = json.loads(torch.ops.anymps.device_info())["features"]["coopmat"]
    if units and (not software or (os.environ.get("ANYMPS_TILES") == "gpu" and dtype == torch.float16)):
        assert any("pipelined" in trial for trial in trials)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_results_are_rounded_to_nearest_even(dtype, sizes):
    """Sums of two terms that float holds exactly, a third of them ties, of either sign and many sizes."""
    m, n, k = sizes[0], sizes[1] // 8 * 8, 64
    digits = 8 if dtype == torch.bfloat16 else 11
    a = torch.zeros(m, k)
    a[:, 0] = torch.randn(m) * torch.randint(-9, 3, (m,)).float().exp2()
    a = a.to(dtype)
    last_place = (a[:, 0].float().abs().log2().floor() - digits + 1).exp2()
    a[:, 1] = (last_place * torch.tensor([0.5, 0.25, 0.75])[torch.randint(3, (m,))]).to(dtype)
    b = torch.zeros(k, n)
    b[:2] = torch.randint(0, 2, (2, n)) * 2.0 - 1.0
    expected = (a.double() @ b.double()).float().to(dtype)
    normal = expected.abs() >= torch.finfo(dtype).tiny
    actual = (a.to("mps") @ b.to(dtype).to("mps")).cpu()
    assert torch.equal(actual[normal], expected[normal])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_alpha_beta_and_in_place(dtype, sizes):
    m, n, k = sizes

    def magnitude(c, a, b):
        return 2 * (a @ b) + c

    a, b = torch.randn(m, k), torch.randn(k, n)
    check(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), torch.randn(n), a, b, dtype=dtype, magnitude=magnitude
    )
    check(lambda c, a, b: c.clone().addmm_(a, b), torch.randn(m, n), a, b, dtype=dtype, magnitude=magnitude)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_infinities_and_nan_stay_in_their_row_and_column(dtype, sizes):
    m, n, k = sizes
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    a[7, k - 1] = float("inf")
    b[k - 1, 9] = float("nan")
    a[m - 1, 3] = -float("inf")
    expected = a.float() @ b.float()
    actual = (a.to("mps") @ b.to("mps")).cpu().float()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.to(dtype).isinf())


def test_they_run_so(software, sizes):
    if software and os.environ.get("ANYMPS_TILES") != "gpu":
        pytest.skip("software drivers multiply on lanes")
    if not json.loads(torch.ops.anymps.device_info())["features"]["coopmat"]:
        pytest.skip("the device has no cooperative matrices")
    m, n, k = sizes
    a, b = torch.randn(m, k).half().to("mps"), torch.randn(k, n).half().to("mps")
    with torch_anymps.profile() as profile:
        torch.mm(a, b)
        torch.mps.synchronize()
    names = [kernel.name for kernel in profile.kernels]
    vendor = json.loads(torch.ops.anymps.device_info())["vendor_id"]
    if not software and vendor != 0x10DE:
        pytest.skip("only NVIDIA's fragments are known to be held as these are stored")
    assert any("fragments" in name for name in names), names
