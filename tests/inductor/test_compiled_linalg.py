"""Linear algebra, whose operators compiled code calls: the strides of their results are what the graph was made for."""

import pytest
import torch
from compiled import compiled_agrees


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4)])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.linalg.solve(a, b) * 2,
        lambda a, b: torch.linalg.solve(a, b[..., 0]).sin(),
        lambda a, b: torch.linalg.solve(a, b.mT, left=False) + 1,
        lambda a, b: torch.linalg.lu_factor(a).LU.cos() + b.sum(),
        lambda a, b: torch.linalg.inv(a) @ b,
        lambda a, b: torch.linalg.slogdet(a).logabsdet + b.sum(),
        lambda a, b: torch.linalg.qr(a).R.abs() @ b,
        lambda a, b: torch.linalg.svdvals(a).sum() * b,
        lambda a, b: torch.linalg.eigvals(a).abs().sum() + b,
        lambda a, b: torch.linalg.cholesky(a @ a.mT + 1) @ b,
    ],
)
def test_results_and_gradients(mps, function, shape):
    a = (torch.randn(shape) + 4 * torch.eye(4)).requires_grad_()
    compiled_agrees(function, a, torch.randn(*shape[:-1], 3).requires_grad_(), backward=True, tolerance=1e-4)
