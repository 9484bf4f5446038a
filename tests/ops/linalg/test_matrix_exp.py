"""exp of matrices on mps against the CPU and against float64."""

import pytest
import torch
from linalg_compare import assert_like_cpu, assert_same_error

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("n", [1, 2, 5, 33, 100])
def test_matrix_exp(mps, n, dtype):
    for scale in (0, 1e-4, 0.1, 1, 3, 20):  # one batch has matrices of no, few and many squarings
        x = torch.randn(2, 3, n, n, dtype=dtype) * torch.tensor([0.1, 1, 2])[:, None, None] * scale / n**0.5
        exact = torch.linalg.matrix_exp(x.to(torch.complex128 if dtype.is_complex else torch.float64))
        of_cpu, ours = torch.linalg.matrix_exp(x), torch.linalg.matrix_exp(x.to(mps)).cpu()
        assert ours.dtype == dtype

        def error(result, exact=exact):
            return ((result - exact).abs().amax((-2, -1)) / exact.abs().amax((-2, -1))).max().item()

        # A polynomial of degree 12 takes one squaring more than the CPU's of degree 18, which doubles errors; squarings
        # multiply a rounding by up to the matrix' norm (Higham, Functions of Matrices, 10.2).
        rounding = torch.finfo(dtype).eps * (4 + 2 * torch.linalg.matrix_norm(x, 1).max().item())
        assert error(ours) <= 5 * error(of_cpu) + rounding, scale
    assert_like_cpu(torch.linalg.matrix_exp, torch.randn(3, n, n, dtype=dtype).mT / 4, gradients=not dtype.is_complex)


def test_matrix_exp_of_unusual_matrices(mps):
    for shape in [(0, 0), (0, 2, 2), (2, 0, 0)]:
        assert_like_cpu(torch.linalg.matrix_exp, torch.ones(shape))
    for value in (float("inf"), float("-inf"), float("nan"), 1e30, -1e30, 90.0):
        x = torch.stack([torch.tensor([[value, 0.0], [0.0, 1.0]]), torch.eye(2)])
        torch.testing.assert_close(
            torch.linalg.matrix_exp(x.to(mps)).cpu(), torch.linalg.matrix_exp(x), equal_nan=True, rtol=1e-5, atol=1e-5
        )
    for dtype in (torch.float16, torch.bfloat16):  # of which the CPU gives infinities for a matrix of ones
        x = torch.randn(2, 4, 4).to(dtype)
        ours = torch.linalg.matrix_exp(x.to(mps)).cpu()
        torch.testing.assert_close(ours, torch.linalg.matrix_exp(x.float()).to(dtype))
    for x in (torch.ones(2, 3), torch.ones(3), torch.ones(2, 2, dtype=torch.int32), torch.ones(1, 1, dtype=torch.bool)):
        assert_same_error(torch.linalg.matrix_exp, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("terms, shape", [((1, 3), (2, 2)), ((5, 3), (40, 30)), ((3, 1), (2, 3, 4))])
def test_linear_combinations(mps, dtype, terms, shape):
    coefficients, x = torch.rand(terms), torch.randn(terms[1], *shape, dtype=dtype)
    combined = torch._compute_linear_combination
    expected = combined(x, coefficients)
    torch.testing.assert_close(combined(x.to(mps), coefficients.to(mps)).cpu(), expected)
    out = torch.ones(shape[-1], *shape[:-1], terms[0], dtype=dtype, device=mps).transpose(0, -1)
    torch.testing.assert_close(combined(x.to(mps), coefficients.to(mps), out=out).cpu() - 1, expected)  # is added to
    assert_same_error(lambda x: combined(x, torch.ones(2, 2, device=x.device)), torch.rand(()))
