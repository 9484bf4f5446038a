"""torch.ops.anymps.addmm_norm, against a norm and the product that follows it."""

import pytest
import torch
import torch.nn.functional as F
from compare import SUMMED as TOLERANCE
from epilogue_functions import after
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("mps")

addmm_norm = torch.ops.anymps.addmm_norm
FLOAT, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16
# m, n, k: one row, several, less than a workgroup's columns, k of no whole vectors, and k that no kernel holds.
SHAPES = [(1, 40, 16), (1, 52, 768), (3, 33, 1024), (4, 260, 72), (1, 24, 4096), (2, 7, 9), (2, 12, 1028), (5, 8, 64)]


def normed(x, weight, bias, eps, centered):
    x = x.float()
    if centered:
        return F.layer_norm(x, x.shape[1:], None if weight is None else weight.float(), bias, eps)
    result = F.rms_norm(x, x.shape[1:], None if weight is None else weight.float(), eps)
    return result if bias is None else result + bias


def on_mps(*tensors):
    return [None if t is None else t.to("mps") for t in tensors]


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("types", [(FLOAT,) * 3, (BFLOAT, BFLOAT, FLOAT), (FLOAT, HALF, HALF)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", range(4), ids=lambda case: f"case{case}")
def test_norms_of_rows(case, shape, types, centered):
    m, n, k = shape
    of_x, of_product, of_norm = types
    torch.manual_seed(m + n + k)
    x = torch.randn(m, 2 * k)[:, :k].mul(3).add(case).to(of_x)  # rows are further apart than they are long
    mat2 = torch.randn(n, k) if case % 2 else torch.randn(k, n)
    mat2 = mat2.div(k**0.5).to(of_product)
    mat2 = mat2.t() if case % 2 else mat2
    weight = torch.randn(k).to(of_norm) if case != 1 else None
    bias = torch.randn(k) if case > 1 else None
    self = torch.randn(n).to(of_product) if case != 2 else None
    operand = torch.randn(m, n).to(of_product) if case == 3 else None
    steps = ["", "gelu_tanh", "silu", "relu add"][case]
    product = normed(x, weight, bias, 1e-3, centered) @ mat2.float() + (0 if self is None else self.float())
    expected = after(steps.split(), product, None if operand is None else operand.float())
    given, norm = on_mps(self, x, mat2), on_mps(weight, bias)
    result = addmm_norm(*given, *norm, 1e-3, centered, steps, *on_mps(operand))
    assert result.dtype == of_product
    tolerance = 4 * TOLERANCE[of_product]  # k terms of normal numbers
    assert_close(result.cpu().float(), expected, rtol=tolerance, atol=tolerance)


def test_rows_far_from_zero():
    x = torch.randn(1, 768) + 1000
    weight = torch.eye(768)
    result = addmm_norm(None, *on_mps(x, weight), None, None, 1e-5, True)
    expected = F.layer_norm(x.double(), (768,)).float()
    assert_close(result.cpu(), expected, rtol=1e-3, atol=2e-3)  # of what float32 holds of x


def test_errors():
    a, b, w = (torch.ones(*sizes, device="mps") for sizes in [(2, 3), (3, 4), (3,)])
    with pytest.raises(RuntimeError, match="for each of the columns of mat1"):
        addmm_norm(None, a, b, w[:2], None, 1e-5, True)
    with pytest.raises(RuntimeError, match="for each of the columns of mat1"):
        addmm_norm(None, a, b, None, w.int(), 1e-5, True)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        addmm_norm(None, b, b, None, None, 1e-5, True)
    with pytest.raises(RuntimeError, match="floating point"):
        addmm_norm(None, a, b.int(), w, None, 1e-5, True)
    with pytest.raises(RuntimeError, match="on the same device"):
        addmm_norm(None, a, b, w.cpu(), None, 1e-5, True)
    with pytest.raises(RuntimeError, match="expected an operand where"):
        addmm_norm(None, a, b, w, None, 1e-5, True, "add")
