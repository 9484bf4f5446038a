"""Linear algebra on mps against the CPU: factorizations, solves, distances."""

import warnings

import pytest
import torch
from linalg_compare import assert_like_cpu, assert_same_error, well_conditioned

pytestmark = pytest.mark.usefixtures("no_fallback")

SHAPES = [(1, 1), (2, 2), (5, 5), (4, 3, 3), (2, 3, 17, 17), (3, 32, 32), (2, 33, 33), (100, 100), (0, 4, 4), (3, 0, 0)]


def positive(*shape: int) -> torch.Tensor:
    x = torch.randn(shape)
    return x @ x.mT / shape[-1] + torch.eye(shape[-1]) if shape[-1] else x


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(mps, upper):
    for shape in SHAPES:
        a = positive(*shape)
        assert_like_cpu(lambda t: torch.linalg.cholesky_ex(t, upper=upper), a)
        factor = torch.linalg.cholesky(a, upper=upper)
        assert_like_cpu(lambda t: torch.cholesky_inverse(t, upper=upper), factor)
        assert_like_cpu(lambda b, t: torch.cholesky_solve(b, t, upper=upper), torch.randn(*shape[:-1], 3), factor)
    assert_like_cpu(lambda t: torch.linalg.cholesky(t, upper=upper), positive(2, 35, 35), gradients=True)
    assert_like_cpu(lambda t: torch.linalg.cholesky(t.mT, upper=upper), positive(3, 6, 40, 40)[:, ::2])
    assert_like_cpu(
        lambda b, t: torch.cholesky_solve(b, t, upper=upper), torch.randn(4, 2), factor_of(3, 4, upper), gradients=True
    )


def factor_of(batch: int, n: int, upper: bool) -> torch.Tensor:
    return torch.linalg.cholesky(positive(batch, n, n), upper=upper)


def test_cholesky_reads_one_triangle(mps):
    a = positive(40, 40)
    garbage = torch.full((40, 40), float("nan"))
    lower = torch.linalg.cholesky(a)
    torch.testing.assert_close(torch.linalg.cholesky((a.tril() + garbage.triu(1)).to(mps)).cpu(), lower)
    upper = torch.linalg.cholesky((a.triu() + garbage.tril(-1)).to(mps), upper=True)
    torch.testing.assert_close(upper.cpu(), lower.mT)


def test_cholesky_of_matrices_that_are_not_positive(mps):
    a = positive(3, 50, 50)
    a[1, 40, 40] = -1
    a[2, 3, 3] = float("nan")
    info = torch.linalg.cholesky_ex(a.to(mps)).info
    assert info.cpu().tolist() == torch.linalg.cholesky_ex(a).info.tolist() == [0, 41, 4]
    for function in (torch.linalg.cholesky, torch.cholesky, lambda t: torch.linalg.cholesky_ex(t, check_errors=True)):
        assert_same_error(function, a)
        assert_same_error(function, a[1])
    assert_same_error(torch.linalg.cholesky, torch.ones(2, 3))
    assert_same_error(torch.linalg.cholesky, torch.ones(2, 2, dtype=torch.float16))
    assert_same_error(torch.cholesky_inverse, torch.zeros(2, 2))


@pytest.mark.parametrize("shape", [*SHAPES, (3, 5), (5, 3), (2, 40, 70), (2, 70, 40)], ids=str)
def test_lu(mps, shape):
    a = torch.randn(shape)
    assert_like_cpu(torch.linalg.lu_factor_ex, a, tolerance=1e-3)
    assert_like_cpu(torch.linalg.lu, a, tolerance=1e-3)
    factors, pivots = torch.linalg.lu_factor(a)
    assert_like_cpu(torch.lu_unpack, factors, pivots)
    assert_like_cpu(lambda f, p: torch.lu_unpack(f, p, unpack_data=False), factors, pivots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("size", [6, 70])
@pytest.mark.parametrize("row, column", [(0, 0), (2, 0), (1, 1), (5, 3)])
def test_pivots_among_nan(mps, row, column, size, dtype):
    """Rows are exchanged whole, and NaN is a pivot where it is the first, as LAPACK's reference has it; MKL differs."""
    matrix = torch.randn(size, size, dtype=dtype)
    matrix[row, column] = float("nan")
    factors, pivots = torch.linalg.lu_factor(matrix.to(mps))
    expected = matrix.to(torch.complex128 if dtype.is_complex else torch.float64)
    for j in range(size):
        below = torch.view_as_real(expected[j:, j] + 0j).abs().sum(-1)
        pivot = j if below[0].isnan() else j + int(below.nan_to_num(-1.0).argmax())
        assert pivots[j].item() == pivot + 1
        expected[[j, pivot]] = expected[[pivot, j]]
        expected[j + 1 :, j] /= expected[j, j]
        expected[j + 1 :, j + 1 :] -= torch.outer(expected[j + 1 :, j], expected[j, j + 1 :])
    assert torch.equal(factors.cpu().isnan(), expected.isnan())
    torch.testing.assert_close(factors.cpu().nan_to_num(0), expected.nan_to_num(0).to(dtype), rtol=1e-3, atol=1e-3)


def test_lu_without_pivoting(mps):
    a = well_conditioned(2, 40, 40)
    factors, pivots = torch.linalg.lu_factor(a.to(mps), pivot=False)
    lower = factors.cpu().tril(-1) + torch.eye(40)
    torch.testing.assert_close(lower @ factors.cpu().triu(), a, rtol=1e-4, atol=1e-4)
    assert pivots.cpu().tolist() == [list(range(1, 41))] * 2


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve(mps, left, adjoint):
    for shape in [(4, 4), (2, 33, 33), (70, 70)]:
        a = well_conditioned(*shape)
        factors, pivots = torch.linalg.lu_factor(a)
        b = torch.randn(*shape[:-1], 3)
        assert_like_cpu(
            lambda f, p, t: torch.linalg.lu_solve(f, p, t, left=left, adjoint=adjoint),
            factors,
            pivots,
            b if left else b.mT,
            gradients=shape[-1] == 4,
        )


@pytest.mark.parametrize("left", [True, False])
def test_solve(mps, left):
    for shape in SHAPES:
        a, b = well_conditioned(*shape), torch.randn(*shape[:-1], 3)
        for matrix in (a, a.mT):
            assert_like_cpu(
                lambda s, t: torch.linalg.solve(s, t, left=left), matrix, b if left else b.mT, gradients=shape[-1] == 17
            )
    assert_like_cpu(torch.linalg.solve, well_conditioned(2, 5, 5), torch.randn(2, 5), gradients=True)
    assert_like_cpu(torch.linalg.solve, well_conditioned(5, 5), torch.randn(3, 5, 2))


def test_inverse_and_determinant(mps):
    for shape in SHAPES:
        a = well_conditioned(*shape)
        small = shape[-1] < 20
        for matrix in (a, a.mT, a.flip(-1)):
            assert_like_cpu(torch.linalg.inv, matrix, gradients=small)
            assert_like_cpu(torch.linalg.slogdet, matrix, gradients=small)
            assert_like_cpu(torch.linalg.det, matrix / 4, gradients=small)
    assert_like_cpu(torch.logdet, positive(2, 6, 6), gradients=True)
    assert_like_cpu(lambda t: torch.linalg.matrix_power(t, -2), well_conditioned(6, 6), gradients=True)
    out = torch.empty(6, 6, device=mps).t()
    a = well_conditioned(6, 6)
    torch.testing.assert_close(torch.linalg.inv(a.to(mps), out=out).cpu(), torch.linalg.inv(a))
    assert_like_cpu(torch.linalg.det, torch.ones(3, 3))
    assert_like_cpu(torch.linalg.slogdet, torch.zeros(2, 3, 3))


def test_singular_matrices(mps):
    a = torch.randn(3, 40, 40)
    a[1, :, 35] = 0
    b = torch.randn(3, 40, 2)
    for function in (torch.linalg.inv, torch.linalg.lu_factor, torch.inverse):
        assert_same_error(function, a)
        assert_same_error(function, a[1])
    assert_same_error(torch.linalg.solve, a, b)
    assert_same_error(torch.linalg.solve, a[1], b[1])
    assert torch.linalg.inv_ex(a.to(mps)).info.cpu().tolist() == torch.linalg.inv_ex(a).info.tolist()
    assert_same_error(torch.linalg.inv, torch.ones(3, 2))
    assert_same_error(torch.linalg.solve, torch.ones(3, 3), torch.ones(2, 2))


def test_pivots_out_of_range_are_reported(mps, run_python):
    script = """
import torch
factors, pivots = torch.eye(3, device="mps"), torch.tensor([1, 7, 3], dtype=torch.int32, device="mps")
torch.lu_unpack(factors, pivots)
try:
    torch.mps.synchronize()
except RuntimeError as error:
    print(type(error).__name__, "lu_unpack" in str(error))
"""
    done = run_python(script)
    assert done.stdout.split() == ["AcceleratorError", "True"], done.stderr


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_solve_triangular(mps, upper, left, unit):
    options = {"upper": upper, "left": left, "unitriangular": unit}
    for shape in SHAPES:
        a = well_conditioned(*shape) / 4
        a = a.triu() if upper else a.tril()
        a[..., range(shape[-1]), range(shape[-1])] += 1
        b = torch.randn(*shape[:-1], 37)
        small = 1 < shape[-1] < 20
        for matrix in (a / shape[-1] if unit and shape[-1] else a, a.mT.contiguous().mT / max(shape[-1], 1)):
            assert_like_cpu(
                lambda s, t: torch.linalg.solve_triangular(s, t, **options),
                matrix,
                b if left else b.mT,
                tolerance=5e-4,
                gradients=small,
            )


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_solve(mps, upper, transpose):
    def solve(b, a):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.triangular_solve(b, a, upper=upper, transpose=transpose)

    a = torch.randn(2, 40, 40) / 40 + torch.eye(40)
    assert_like_cpu(solve, torch.randn(40, 5), a, gradients=True)


def test_many_small_matrices(mps):
    a = positive(70_000, 2, 2)  # more workgroups than one dimension of a grid has
    assert_like_cpu(torch.linalg.cholesky, a)
    assert_like_cpu(torch.linalg.solve, a, torch.randn(70_000, 2, 1))
    assert_like_cpu(torch.linalg.det, a)


def test_large_matrices(mps):
    """Residuals at 1024 are at most twice the CPU's."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 8)
    s = a @ a.mT / 1024 + torch.eye(1024)

    def residuals(a, s, b):
        factors, pivots = torch.linalg.lu_factor(a)
        p, lower, upper = (t.cpu().double() for t in torch.lu_unpack(factors, pivots))
        factor = torch.linalg.cholesky(s).cpu().double()
        a, s, b = a.cpu().double(), s.cpu().double(), b.cpu().double()
        return (p @ lower @ upper - a).norm() / a.norm(), (factor @ factor.mT - s).norm() / s.norm()

    for mine, theirs in zip(residuals(a.to(mps), s.to(mps), b.to(mps)), residuals(a, s, b), strict=True):
        assert mine <= 2 * theirs + 1e-7
    x = torch.linalg.solve(a.to(mps), b.to(mps)).cpu().double()
    y = torch.linalg.solve(a, b).double()
    error = [(a.double() @ t - b.double()).norm() / (a.norm() * t.norm()) for t in (x, y)]
    assert error[0] <= 2 * error[1] + 1e-8


@pytest.mark.parametrize("shape", [(1024, 1024), (2, 1000, 1000)], ids=str)
def test_large_inverses_triangles_and_determinants(mps, shape):
    """At most twice the CPU's error beside float64, or two ulp, as one number may come out exact."""
    a = well_conditioned(*shape)
    lower = a.tril() / shape[-1] ** 0.5
    b = torch.randn(*shape[:-1], 8)
    functions = {
        "inv": lambda t, s, u: torch.linalg.inv(t),
        "slogdet": lambda t, s, u: torch.linalg.slogdet(t).logabsdet,
        "solve": lambda t, s, u: torch.linalg.solve(t, u),
        "triangular": lambda t, s, u: torch.linalg.solve_triangular(s, u, upper=False),
    }
    for name, function in functions.items():
        exact = function(a.double(), lower.double(), b.double())
        errors = [
            (y.cpu().double() - exact).norm() / exact.norm()
            for y in (function(a.to(mps), lower.to(mps), b.to(mps)), function(a, lower, b))
        ]
        assert errors[0] <= 2 * errors[1] + 2.4e-7, (name, *errors)
    sign = torch.linalg.slogdet(a.to(mps)).sign.cpu()
    assert torch.equal(sign, torch.linalg.slogdet(a).sign)


@pytest.mark.parametrize("n", [5, 32, 70])
def test_complex_matrices(mps, n):
    a = torch.randn(2, n, n, dtype=torch.complex64) + 2 * n**0.5 * torch.eye(n)
    b = torch.randn(2, n, 3, dtype=torch.complex64)
    h = a @ a.mH / n
    assert_like_cpu(torch.linalg.lu_factor, a)
    assert_like_cpu(torch.linalg.inv, a)
    assert_like_cpu(torch.linalg.slogdet, a)
    for left in (True, False):
        rhs = b if left else b.mT
        assert_like_cpu(lambda s, t, left=left: torch.linalg.solve(s, t, left=left), a, rhs)
        assert_like_cpu(lambda s, t, left=left: torch.linalg.solve_triangular(s, t, upper=left, left=left), a, rhs)
        assert_like_cpu(lambda s, t, left=left: torch.linalg.solve_triangular(s.mH, t, upper=True, left=left), a, rhs)
        for adjoint in (True, False):
            options = {"left": left, "adjoint": adjoint}
            assert_like_cpu(
                lambda f, p, t, o=options: torch.linalg.lu_solve(f, p, t, **o), *torch.linalg.lu_factor(a), rhs
            )
    for upper in (True, False):
        assert_like_cpu(lambda t, u=upper: torch.linalg.cholesky(t, upper=u), h)
        factor = torch.linalg.cholesky(h, upper=upper)
        assert_like_cpu(lambda t, f, u=upper: torch.cholesky_solve(t, f, upper=u), b, factor)


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, float("inf")])
def test_distances(mps, p):
    for rows, columns in [(1, 3), (2, 1), (7, 5), (50, 20), (3, 0), (0, 3)]:
        x = torch.randn(rows, columns)
        assert_like_cpu(lambda t: torch.nn.functional.pdist(t, p), x, gradients=rows > 1 and columns > 0)
        y = torch.randn(4, columns)
        assert_like_cpu(lambda s, t: torch.cdist(s, t, p), x, y, gradients=x.numel() > 0)
    batches = torch.randn(3, 1, 7, 5), torch.randn(2, 4, 5)
    assert_like_cpu(lambda s, t: torch.cdist(s, t, p), *batches, gradients=True)
    none = torch.randn(0, 3, 5), torch.randn(4, 5)  # whose gradient has the shape of each, as its meta kernel says
    for x, y in (none, none[::-1]):
        pairs = torch.ones(0, x.size(-2), y.size(-2))
        assert_like_cpu(lambda g, s, t: torch.ops.aten._cdist_backward(g, s, t, p, g), pairs, x, y)
    ties = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 2.0]])
    assert_like_cpu(lambda t: torch.nn.functional.pdist(t, p), ties, gradients=True)
    assert_same_error(lambda t: torch.nn.functional.pdist(t, -1), torch.ones(3, 2))
    assert_same_error(torch.nn.functional.pdist, torch.ones(3))


def test_pairs_of_many_rows(mps):
    x = torch.randn(1500, 2)
    assert_like_cpu(torch.nn.functional.pdist, x)


@pytest.mark.parametrize("shape", [(3, 0), (2, 3, 0), (0, 3), (0, 2, 2)])
def test_lu_without_elements(shape, mps):
    for function in (torch.linalg.lu_factor, torch.linalg.lu):
        got, want = function(torch.rand(shape, device=mps)), function(torch.rand(shape))
        assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want))
