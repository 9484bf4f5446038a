"""Matrix products against float64 on the CPU: shapes, strides, types, recycled memory, alpha and beta."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compare import PRODUCT as EPSILON

pytestmark = pytest.mark.usefixtures("poisoned_memory")

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def check(function, *operands, dtype=torch.float32, magnitude=None):
    """The function of the device copies of the operands equals the one of the CPU's in float64.

    The error is relative to `magnitude` (by default the function) of the operands' magnitudes.
    """
    operands = [x.to(dtype) if x.is_floating_point() else x for x in operands]
    expected = function(*[x.double() if x.is_floating_point() else x for x in operands])
    scale = (magnitude or function)(*[x.double().abs() if x.is_floating_point() else x for x in operands])
    actual = function(*[x.to("mps") for x in operands])
    assert actual.device.type == "mps" and actual.shape == expected.shape
    if not dtype.is_floating_point:
        assert actual.dtype == dtype and torch.equal(actual.cpu(), expected.to(dtype))
        return
    assert actual.dtype == dtype
    limit = EPSILON[dtype] * scale.abs() + torch.finfo(dtype).tiny
    assert ((actual.cpu().double() - expected).abs() <= limit).all(), (
        f"worst {((actual.cpu().double() - expected).abs() / limit).max()} times the limit"
    )


def random(*shape, dtype=torch.float32):
    return torch.randn(shape) if dtype.is_floating_point else torch.randint(-40, 40, shape).to(dtype)


SHAPES = [
    (1, 1, 1),
    (1, 64, 7),
    (64, 1, 33),
    (5, 7, 1),
    (16, 32, 16),
    (17, 33, 19),
    (128, 96, 64),
    (130, 259, 77),
    (3, 500, 1000),
    (33, 2, 515),
    (1, 300, 512),
    (2, 3, 5000),
    (8, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mm_shapes_in_all_transpositions(shape):
    m, n, k = shape
    for a in (random(m, k), random(k, m).t()):
        for b in (random(k, n), random(n, k).t()):
            check(torch.mm, a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_few_rows(rows, dtype):
    """Vectors and a few rows, beside matrices whose rows or columns lie together."""
    for k, n in ((1, 64), (70, 48), (515, 132), (9000, 16)):
        for b in (random(k, n), random(n, k).t()):
            check(torch.mm, random(rows, k), b, dtype=dtype)
            check(torch.mm, b.t(), random(k, rows), dtype=dtype)
    check(torch.addmm, random(132), random(rows, 515), random(515, 132), dtype=dtype)
    check(torch.bmm, random(3, rows, 70), random(3, 70, 48), dtype=dtype)
    check(torch.mv, random(515, 132).t(), random(515), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_mm_types(dtype):
    for m, n, k in [(8, 36, 40), (33, 35, 37)]:
        check(torch.mm, random(m, k, dtype=dtype), random(k, n, dtype=dtype), dtype=dtype)
        check(torch.mm, random(k, m, dtype=dtype).t(), random(n, k, dtype=dtype).t(), dtype=dtype)


@pytest.mark.parametrize("batch", [1, 3, 8, 9, 17, 130])
def test_bmm_batches(batch):
    check(torch.bmm, random(batch, 5, 12), random(batch, 12, 7))
    check(torch.bmm, random(batch, 12, 5).mT, random(batch, 7, 12).mT)
    check(torch.bmm, random(5, batch, 12).transpose(0, 1), random(12, 7, batch).permute(2, 0, 1))


def test_views_with_offsets_and_strides():
    base = random(40, 50)
    check(lambda x: x[3:20, 5:30] @ x[5:30, 7:41], base)
    check(lambda x: x[1::3, ::3] @ x[3:37:2, 1::5], base)
    check(lambda x: x[2:6].expand(3, 4, 50) @ x[7:9].t().expand(3, 50, 2), base)
    check(lambda x: x[:1].expand(6, 50) @ x[:3].t(), base)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("alpha,beta", [(1, 1), (2, 0), (-3, 2), (0, 1)])
def test_addmm_and_baddbmm_scale(dtype, alpha, beta):
    def check_scaled(function, *operands):
        def scaled(alpha, beta):
            return lambda *tensors: function(*tensors, alpha=alpha, beta=beta)

        check(scaled(alpha, beta), *operands, dtype=dtype, magnitude=scaled(abs(alpha), abs(beta)))

    a, b = random(9, 11, dtype=dtype), random(11, 13, dtype=dtype)
    for shape in [(9, 13), (13,), (9, 1), (1,), ()]:
        check_scaled(torch.addmm, random(*shape, dtype=dtype), a, b)
    batch = random(3, 9, 11, dtype=dtype), random(3, 11, 13, dtype=dtype)
    check_scaled(torch.baddbmm, random(3, 1, 13, dtype=dtype), *batch)
    check_scaled(torch.addbmm, random(9, 13, dtype=dtype), *batch)
    check_scaled(torch.addmv, random(9, dtype=dtype), a, b[:, 3])


def test_beta_zero_ignores_nan(mps):
    nan = torch.full((4, 5), float("nan"), device=mps)
    a, b = torch.ones(4, 6, device=mps), torch.ones(6, 5, device=mps)
    assert torch.equal(torch.addmm(nan, a, b, beta=0).cpu(), torch.full((4, 5), 6.0))
    assert torch.equal(torch.baddbmm(nan[None], a[None], b[None], beta=0).cpu(), torch.full((1, 4, 5), 6.0))
    assert torch.addmm(nan, a, b).cpu().isnan().all()


def test_nan_and_infinity_spread_as_on_the_cpu():
    a, b = random(6, 21), random(21, 9)
    a[2, 20], a[3, 0], b[4, 1] = float("nan"), float("inf"), 0.0
    b[0, 5] = 0.0
    assert torch.equal(torch.mm(a.to("mps"), b.to("mps")).cpu().isnan(), torch.mm(a, b).isnan())


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e38, 3.4e38, 1e-36], ids=str)
def test_numbers_at_the_ends_of_the_range(value):
    """Whatever parts an f32 factor is cut into: the other numbers of a tile stay exact, results overflow as in f32."""
    a, b = random(70, 40), random(40, 50) * 1e-3
    a[7, 9], a[60] = value, 0.0
    expected, actual = torch.mm(a, b), torch.mm(a.to("mps"), b.to("mps")).cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7, equal_nan=True)
    assert actual[60].abs().max().item() == 0


# "high" may be as TF32, whose factors have 11 bits.
@pytest.mark.parametrize("precision, error", [("high", 1e-3), ("medium", 8e-3)])
def test_cheaper_products(precision, error):
    a, b = random(70, 90), random(90, 50)
    torch.set_float32_matmul_precision(precision)
    try:
        actual = torch.mm(a.to("mps"), b.to("mps")).cpu().double()
    finally:
        torch.set_float32_matmul_precision("highest")
    limit = error * (a.double().abs() @ b.double().abs())
    assert ((actual - a.double() @ b.double()).abs() <= limit).all()


def test_empty_sums_and_empty_results(mps):
    assert torch.equal(torch.mm(torch.empty(3, 0, device=mps), torch.empty(0, 4, device=mps)).cpu(), torch.zeros(3, 4))
    check(lambda s, a, b: torch.addmm(s, a, b, beta=3), random(5), random(4, 0), random(0, 5))
    check(torch.bmm, random(9, 3, 0), random(9, 0, 2))
    assert torch.mm(torch.empty(0, 3, device=mps), torch.empty(3, 4, device=mps)).shape == (0, 4)
    assert torch.bmm(torch.empty(0, 3, 2, device=mps), torch.empty(0, 2, 4, device=mps)).shape == (0, 3, 4)
    assert torch.dot(torch.empty(0, device=mps), torch.empty(0, device=mps)).item() == 0
    assert F.linear(torch.empty(2, 0, device=mps), torch.empty(3, 0, device=mps)).tolist() == [[0] * 3] * 2


def test_out_and_in_place_forms(mps):
    a, b, s = random(6, 8), random(8, 10), random(6, 10)
    expected = torch.addmm(s, a, b)
    for out in (torch.empty(6, 10, device=mps), torch.empty(10, 6, device=mps).t(), torch.empty(0, device=mps)):
        torch.addmm(s.to(mps), a.to(mps), b.to(mps), out=out)
        torch.testing.assert_close(out.cpu(), expected)
    wide = torch.zeros(6, 20, device=mps)
    torch.mm(a.to(mps), b.to(mps), out=wide[:, ::2])
    torch.testing.assert_close(wide[:, ::2].cpu(), a @ b)
    assert wide[:, 1::2].cpu().abs().max().item() == 0
    in_place = s.to(mps)
    in_place.addmm_(a.to(mps), b.to(mps), beta=0.5)
    torch.testing.assert_close(in_place.cpu(), torch.addmm(s, a, b, beta=0.5))


def test_out_that_is_an_operand(mps):
    a, b = random(7, 7), random(7, 7)
    x, y = a.to(mps), b.to(mps)
    torch.mm(x, y, out=x)
    torch.testing.assert_close(x.cpu(), a @ b)
    torch.addmm(y.t(), y, y, out=y)
    torch.testing.assert_close(y.cpu(), torch.addmm(b.t(), b, b))


def test_dot_vdot_mv_and_matmul():
    for size in (1, 3, 1000, 100_003):
        check(torch.dot, random(size), random(size))
    check(torch.vdot, random(50)[::2], random(25))
    check(torch.mv, random(30, 17), random(17))
    check(torch.matmul, random(17), random(17, 4))
    check(torch.matmul, random(2, 3, 5, 7), random(3, 7, 4))
    check(torch.matmul, random(2, 3, 5, 7).transpose(1, 2), random(7, 4))
    check(torch.dot, random(9, dtype=torch.int32), random(9, dtype=torch.int32), dtype=torch.int32)


def test_results_do_not_depend_on_what_ran_before(mps):
    a, b = random(12, 65, 40).to(mps), random(12, 40, 33).to(mps)
    first = torch.bmm(a, b).cpu()
    for _ in range(20):
        noise = torch.full((12, 65, 33), float("nan"), device=mps)
        del noise
        assert torch.equal(torch.bmm(a, b).cpu(), first)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", [(32, 4, 8), (5, 5, 5), (67, 130, 33), (31, 255, 64)], ids=str)
def test_results_do_not_depend_on_what_lies_behind_a_factor(sizes, dtype, mps):
    """Tiles read words that go over the last row: what is there must decide nothing, not even how results round."""
    m, n, k = sizes

    def products(a, b, behind):
        for left in (a, a.t().contiguous().t()):
            for right in (b, b.t().contiguous().t()):
                yield followed(left, behind) @ followed(right, behind)

    def followed(matrix, value):
        size, start = matrix.numel(), 3
        memory = torch.full((start + size + 64,), value, dtype=dtype, device=mps)
        view = memory[start : start + size].as_strided(matrix.shape, matrix.stride(), start)
        return view.copy_(matrix)

    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    expected = [product.cpu() for product in products(a, b, 0.0)]
    for value in (float("nan"), float("inf"), 1e4):
        for product, plain in zip(products(a, b, value), expected, strict=True):
            assert torch.equal(product.cpu(), plain)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (4, 5, 7), (2, 3, 4, 7), (0, 7)], ids=str)
def test_linear(dtype, shape):
    w, b = random(9, 7), random(9)
    check(F.linear, random(*shape), w, b, dtype=dtype)
    check(F.linear, random(*shape), w, dtype=dtype)
    if len(shape) > 2:
        check(lambda x, w, b: F.linear(x.transpose(0, 1), w, b), random(*shape), w, b, dtype=dtype)
    check(F.linear, random(*shape), random(7), dtype=dtype)


@pytest.mark.parametrize(
    ("shape", "features"),
    [((7,), 9), ((6, 7), 9), ((3, 5, 7), 9), ((11, 4, 7), 9), ((6, 0), 9), ((3, 5, 7), 0), ((0, 7), 9), ((6, 0), 0)],
    ids=str,
)
def test_linear_gradients(shape, features):
    def gradients(x, w, b, g):
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        y = F.linear(x.transpose(0, -2) if x.dim() > 2 else x, w, b)
        return torch.cat([t.flatten() for t in torch.autograd.grad(y, [x, w, b], g)])

    x, g = random(*shape), random(*shape[:-1], features)
    g = g.transpose(0, -2) if len(shape) > 2 else g
    check(gradients, x, random(features, shape[-1]), random(features), g)
    if features > 0:
        check(gradients, x, random(features, shape[-1]), random(features), g[..., :1].expand_as(g))


def test_linear_refuses_what_does_not_fit(raises_as_on_the_cpu):
    """In the words of the PyTorch that is installed."""
    raises_as_on_the_cpu(lambda ones: F.linear(ones(2, 3), ones(2, 4)))
    raises_as_on_the_cpu(lambda ones: F.linear(ones(5, 2, 3), ones(2, 4), ones(2)))
    raises_as_on_the_cpu(lambda ones: F.linear(ones(3), ones(2, 4), ones(2)))
    raises_as_on_the_cpu(lambda ones: F.linear(ones(2, 3), ones(2, 3).half()))
    raises_as_on_the_cpu(lambda ones: F.linear(ones(2, 3), ones(2, 3), ones(2).half()))
    raises_as_on_the_cpu(lambda ones: F.linear(ones(), ones(2, 3)))
    raises_as_on_the_cpu(lambda ones: F.linear(ones(2, 3), ones(2, 2, 3)))


def test_linear_second_derivative(mps):
    x = torch.randn(3, 4, device=mps, requires_grad=True)
    w = torch.randn(5, 4, device=mps, requires_grad=True)

    def second(x, w):
        y = F.linear(x, w)
        (gx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        return torch.autograd.grad(gx.sum(), w)[0]

    expected = second(*(t.detach().cpu().double().requires_grad_() for t in (x, w)))
    torch.testing.assert_close(second(x, w).cpu().double(), expected, rtol=1e-4, atol=1e-4)


def test_tiny_gradients_survive():
    """Sums of 1e-12 are as exact as sums of 1, however long."""
    for rows in (50, 20_000):
        g, x = random(rows, 6) * 1e-12, random(rows, 5)
        actual = torch.mm(g.to("mps").t(), x.to("mps")).cpu().double()
        expected = g.double().t() @ x.double()
        assert ((actual - expected).abs() <= 2e-6 * (g.double().abs().t() @ x.double().abs())).all()


@pytest.mark.parametrize(
    "case",
    [
        lambda t: torch.mm(t(2, 3), t(2, 3)),
        lambda t: torch.mm(t(2), t(2, 3)),
        lambda t: torch.bmm(t(2, 3), t(2, 3)),
        lambda t: torch.bmm(t(2, 3, 4), t(3, 4, 5)),
        lambda t: torch.addmm(t(7), t(2, 3), t(3, 4)),
        lambda t: torch.mv(t(2, 3), t(2)),
        lambda t: torch.dot(t(2), t(3)),
        lambda t: torch.dot(t(2, 2), t(2)),
        lambda t: torch.mm(t(2, 3), t(3, 2).half()),
        lambda t: torch.baddbmm(t(3, 3, 3), t(2, 3, 3), t(2, 3, 3)),
        lambda t: torch.addbmm(t(2, 3), t(1, 2, 3), t(1, 2, 3)),
        lambda t: F.linear(t(2, 3), t(4, 5)),
        lambda t: F.linear(t(2, 2, 3), t(4, 5), t(4)),
        lambda t: F.linear(t(2, 3), t(4, 3), t(5)),
        lambda t: F.linear(t(2, 3), t(4, 3).half()),
        lambda t: torch.dot(t(2), t(2).half()),
        lambda t: torch.mm(t(2, 2), t(2, 2), out=t(2, 2).int()),
        lambda t: torch.addr(t(2, 3), t(2), t(3), beta=True),
        lambda t: torch.addr(t(2, 3), t(2), t(3), alpha=1j),
        lambda t: torch.addr(t(2, 3).int(), t(2).int(), t(3).int(), alpha=0.5),
        lambda t: t(2, 3).to(torch.complex64).addr_(t(2), t(3), alpha=True),
        lambda t: torch.addr(t(2, 3), t(2), t(3), beta=True, out=t(2, 3)),
    ],
)
def test_wrong_arguments_raise_what_the_cpu_raises(case, raises_as_on_the_cpu):
    raises_as_on_the_cpu(case)


def test_types_without_a_product_are_refused(mps):
    for dtype in (torch.bool, torch.uint16):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            torch.mm(torch.ones(2, 2, device=mps).to(dtype), torch.ones(2, 2, device=mps).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_factors_without_elements(dtype, mps):
    a, b = torch.ones(4, 0, dtype=dtype), torch.ones(0, 3, dtype=dtype)
    for rows in (torch.tensor([2, 3, 4]).to(dtype), torch.ones(4, 3, dtype=dtype), torch.ones(1, dtype=dtype)):
        for beta in (0, 1, 3):
            expected = torch.addmm(rows, a, b, beta=beta)
            assert torch.equal(torch.addmm(rows.to(mps), a.to(mps), b.to(mps), beta=beta).cpu(), expected)
    if dtype.is_floating_point:
        nothing = torch.full((3,), float("nan"), dtype=dtype, device=mps)
        assert torch.equal(torch.addmm(nothing, a.to(mps), b.to(mps), beta=0).cpu(), torch.zeros(4, 3, dtype=dtype))


@pytest.mark.parametrize("beta", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("batch, rows, terms, columns", [(0, 5, 6, 7), (3, 5, 0, 7), (0, 5, 0, 7), (3, 0, 6, 7)])
def test_batches_of_nothing(batch, rows, terms, columns, dtype, beta, mps):
    a, b = torch.ones(batch, rows, terms).to(dtype), torch.ones(batch, terms, columns).to(dtype)
    for function, size in ((torch.addbmm, (rows, columns)), (torch.baddbmm, (batch, rows, columns))):
        self = torch.ones(size).to(dtype)
        expected = function(self, a, b, beta=beta)
        assert torch.equal(function(self.to(mps), a.to(mps), b.to(mps), beta=beta).cpu(), expected)


def test_a_result_over_itself_raises(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch.mm(ones(4, 4), ones(4, 4), out=ones(4, 1).expand(4, 4)))
