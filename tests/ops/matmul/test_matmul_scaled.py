"""Products of float32 that matrix units compute from scaled halves, against float64 on the CPU.

On a GPU the sizes are those from which factors are cut into halves; a software driver does so with ANYMPS_TILES=gpu
(tests/kernels/test_gpu_tiles.py). Whatever multiplies, these hold.
"""

from __future__ import annotations

import pytest
import torch
from test_matmul import check

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.fixture(scope="module")
def sizes(mps):
    """Rows, columns and k: none a multiple of a tile, k of several."""
    software = torch.ops.anymps.device_info().find("llvmpipe") >= 0
    return (150, 100, 203) if software else (1500, 1301, 1203)


def wide(*shape):
    """Numbers of many magnitudes."""
    return torch.randn(shape) * torch.exp(6 * torch.randn(shape))


LAYOUTS = {
    "nn": (lambda a, b: a @ b, lambda m, n, k: ((m, k), (k, n))),
    "nt": (lambda a, b: a @ b.t(), lambda m, n, k: ((m, k), (n, k))),
    "tn": (lambda a, b: a.t() @ b, lambda m, n, k: ((k, m), (k, n))),
    "tt": (lambda a, b: a.t() @ b.t(), lambda m, n, k: ((k, m), (n, k))),
    "slices": (lambda a, b: a[3:, 5::2] @ b[1:, ::3], lambda m, n, k: ((m + 3, 2 * k + 5), (k + 1, 3 * n))),
    "words": (lambda a, b: a[:, :-8] @ b[:, :-8].t(), lambda m, n, k: ((m, k // 4 * 4 + 8), (n, k // 4 * 4 + 8))),
    "expanded": (lambda a, b: a.expand(len(b), -1) @ b, lambda m, n, k: ((1, k), (k, n))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, sizes):
    function, shapes = LAYOUTS[layout]
    check(function, *[torch.randn(shape) for shape in shapes(*sizes)])


def test_long_sums(sizes):
    """k of more granules than threads keep, and cut into parts."""
    for k in (1500, 3000, 9000):
        check(torch.mm, torch.randn(70, k), torch.randn(k, 90))
        check(lambda a, b: a.t() @ b.t(), torch.randn(k, 70), torch.randn(90, k))


BATCHES = ["both", "first expanded", "second expanded", "transposed"]


def batched(form, m, n, k):
    """A product of three matrices a side, of which one may be the same for all, and its factors."""
    transposed = form == "transposed"
    a = torch.randn(1 if form == "first expanded" else 3, *((k, m) if transposed else (m, k)))
    b = torch.randn(1 if form == "second expanded" else 3, *((n, k) if transposed else (k, n)))

    def product(a, b):
        a, b = a.expand(3, -1, -1), b.expand(3, -1, -1)
        return torch.bmm(a.mT, b.mT) if transposed else torch.bmm(a, b)

    return product, a, b


@pytest.mark.parametrize("form", BATCHES)
def test_batches(form, sizes):
    check(*batched(form, *sizes))


def test_alpha_beta_and_in_place(sizes):
    m, n, k = sizes
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(n)

    def magnitude(c, a, b):
        return 2 * (a @ b) + c

    check(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), c, a, b, magnitude=magnitude)
    # A row that halves cannot hold is computed twice: what it is added to must still be there.
    a[3] *= 1e30
    check(lambda c, a, b: c.clone().addmm_(a, b), torch.randn(m, n), a, b, magnitude=magnitude)


SPECIAL = {
    "infinity": lambda a, b: a[7].__setitem__(3, float("inf")),
    "nan": lambda a, b: (a[7].__setitem__(3, float("nan")), b[5].__setitem__(9, -float("inf"))),
    "a large number": lambda a, b: (a[70].__setitem__(3, 3e38), b.mul_(1e-3)),
    "large rows": lambda a, b: a[::9].mul_(1e30),
    "small rows": lambda a, b: (a[::9].mul_(1e-30), b[:, 5].mul_(1e-20)),
    "rows of zeros": lambda a, b: (a[::3].zero_(), b[:, ::5].zero_()),
    # Sums of what halves lose: the large numbers meet zeros.
    "small meets large": lambda a, b: (a[:, ::2].mul_(1e-12), b[1::2].zero_()),
    "one small result": lambda a, b: (a[5, ::2].mul_(1e-12), b[1::2, 7].mul_(1e-15)),
}


@pytest.mark.parametrize("case", SPECIAL)
def test_numbers_that_halves_cannot_hold(case, sizes):
    m, n, k = sizes
    a, b = torch.randn(m, k), torch.randn(k, n)
    SPECIAL[case](a, b)
    actual = torch.mm(a.to("mps"), b.to("mps")).cpu().double()
    expected = a.double() @ b.double()
    finite = expected.isfinite()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual[~finite].nan_to_num(), expected[~finite].nan_to_num())
    limit = 2e-6 * (a.double().abs() @ b.double().abs()) + torch.finfo(torch.float32).tiny
    assert ((actual - expected).abs() <= limit)[finite].all()


def test_many_magnitudes(sizes):
    m, n, k = sizes
    check(torch.mm, wide(m, k), torch.randn(k, n))
    check(torch.mm, wide(m, k), wide(k, n))
    check(torch.mm, torch.softmax(8 * torch.randn(m, k), 1), torch.randn(k, n))


def test_error_of_random_numbers(sizes):
    """That of float32 sums: less than one rounding of the sum of magnitudes, two where lanes add on a CPU."""
    m, n, k = sizes
    a, b = torch.randn(m, k), torch.randn(k, n)
    error = (torch.mm(a.to("mps"), b.to("mps")).cpu().double() - a.double() @ b.double()).abs()
    assert (error / (a.double().abs() @ b.double().abs())).max() < (3e-7 if m < 1000 else 1e-7)


def test_high_precision_is_that_of_tf32(sizes):
    m, n, k = sizes
    a, b = torch.randn(m, k), torch.randn(k, n)
    torch.set_float32_matmul_precision("high")
    try:
        actual = torch.mm(a.to("mps"), b.to("mps")).cpu().double()
    finally:
        torch.set_float32_matmul_precision("highest")
    limit = 1e-3 * (a.double().abs() @ b.double().abs())
    assert ((actual - a.double() @ b.double()).abs() <= limit).all()


def check_all_tiles(function, *operands, calls, **options):
    """While tiles are tuned, calls try every tile in turn, and numbers of parts of k. Returns which they were."""
    torch.ops.anymps.start_tuning()
    try:
        for _ in range(calls):
            check(function, *operands, **options)
    finally:
        trials = torch.ops.anymps.stop_tuning()
    return trials


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_all_tiles(layout, sizes):
    function, shapes = LAYOUTS[layout]
    m, n, k = sizes
    assert check_all_tiles(function, *[torch.randn(shape) for shape in shapes(m, n, k // 64 * 64)], calls=12)
