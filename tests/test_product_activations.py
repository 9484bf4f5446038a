"""torch.ops.anymps.addmm_activation and mm_activation_backward, against the operators that they stand for."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("mps")

ops = torch.ops.anymps
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
# m, n, k: less than a tile, edges of tiles, rows that are not vectors, one column, a sum that is split over k.
SHAPES = [(5, 7, 9), (64, 64, 64), (130, 260, 72), (33, 50, 128), (40, 1, 16), (1, 40, 16), (16, 24, 20000)]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def factors(m, n, k, dtype, transposed):
    """On the CPU, so that products are about 1; mat2 as a weight is given: transposed."""
    torch.manual_seed(m + n + k)
    mat1 = torch.randn(m, k).div(k**0.5).to(dtype)
    mat2 = torch.randn(n, k).to(dtype).t() if transposed else torch.randn(k, n).to(dtype)
    return mat1, mat2


def close(actual, expected, dtype):
    assert actual.dtype == dtype
    assert_close(actual.cpu().float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_activation_of_a_product(shape, dtype):
    m, n, k = shape
    for number, (name, function) in enumerate(ACTIVATIONS.items()):
        mat1, mat2 = factors(m, n, k, dtype, transposed=number % 2 == 0)
        for self in (torch.randn(n).to(dtype), torch.randn(m, n).to(dtype), None):
            sum_ = mat1.float() @ mat2.float() + (0 if self is None else self.float())
            summand = None if self is None else self.to("mps")
            result, kept = ops.addmm_activation_and_input(summand, mat1.to("mps"), mat2.to("mps"), name)
            close(kept, sum_, dtype)
            close(result, function(sum_), dtype)
            alone = ops.addmm_activation(summand, mat1.to("mps"), mat2.to("mps"), name)
            assert torch.equal(alone, result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_an_activation_from_a_product(shape, dtype):
    m, n, k = shape
    for name, function in ACTIVATIONS.items():
        mat1, mat2 = factors(m, n, k, dtype, transposed=False)
        x = (3 * torch.randn(m, n)).to(dtype)
        leaf = x.float().requires_grad_()
        function(leaf).backward(mat1.float() @ mat2.float())
        result = ops.mm_activation_backward(mat1.to("mps"), mat2.to("mps"), x.to("mps"), name)
        close(result, leaf.grad, dtype)


def test_ends_of_the_range():
    x = torch.tensor([[-float("inf"), -1e30, -100.0, -0.0, 0.0, 100.0, 1e30, float("nan")]])
    one = torch.ones(1, 1)
    for name, function in ACTIVATIONS.items():
        result = ops.addmm_activation(x.to("mps"), one.to("mps"), torch.zeros(1, 8, device="mps"), name)
        expected = function(x)
        assert_close(result.cpu()[:, 1:], expected[:, 1:], equal_nan=True)
        grad = ops.mm_activation_backward(one.to("mps"), torch.ones(1, 8, device="mps"), x.to("mps"), name)
        leaf = x.clone().requires_grad_()
        function(leaf).backward(torch.ones_like(leaf))
        assert_close(grad.cpu()[:, 2:6], leaf.grad[:, 2:6])


def test_errors():
    a, b = torch.ones(2, 3, device="mps"), torch.ones(3, 4, device="mps")
    with pytest.raises(ValueError, match="expected an activation out of relu, gelu and gelu_tanh, but got sigmoid"):
        ops.addmm_activation(None, a, b, "sigmoid")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        ops.addmm_activation(None, b, b, "relu")
    with pytest.raises(RuntimeError, match="one dtype"):
        ops.mm_activation_backward(a, b.half(), a, "relu")
    with pytest.raises(RuntimeError, match="floating point"):
        ops.addmm_activation(None, a.int(), b.int(), "relu")
    with pytest.raises(RuntimeError, match="must match the existing size"):
        ops.mm_activation_backward(a, b, torch.ones(3, 4, device="mps"), "gelu")
    with pytest.raises(RuntimeError, match="on the same device"):
        ops.addmm_activation(a[0, 0], a.cpu(), b, "relu")
    with pytest.raises(RuntimeError, match="on the same device"):
        ops.mm_activation_backward(a, b, torch.ones(2, 4), "gelu")
