"""torch.ops.anymps.addmm_epilogue, against the operators that it stands for."""

import pytest
import torch
from compare import SUMMED as TOLERANCE
from epilogue_functions import FUNCTIONS, after
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("mps")

addmm_epilogue = torch.ops.anymps.addmm_epilogue
addmm_epilogue_and_first = torch.ops.anymps.addmm_epilogue_and_first
# m, n, k: less than a tile, edges of tiles, rows that are not vectors, one column, a sum that is split over k.
SHAPES = [(5, 7, 9), (64, 64, 64), (130, 260, 72), (33, 50, 128), (40, 1, 16), (1, 40, 16), (16, 24, 20000)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def factors(m, n, k, dtype, transposed):
    """On the CPU, so that products are about 1; mat2 as a weight is given: transposed."""
    torch.manual_seed(m + n + k)
    mat1 = torch.randn(m, k).div(k**0.5).to(dtype)
    mat2 = torch.randn(n, k).to(dtype).t() if transposed else torch.randn(k, n).to(dtype)
    return mat1, mat2


def close(actual, expected, dtype):
    assert actual.dtype == dtype
    assert_close(actual.cpu().float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_a_product(shape, dtype):
    m, n, k = shape
    for number, name in enumerate(FUNCTIONS if m < 10 else ["relu", "gelu"]):
        mat1, mat2 = factors(m, n, k, dtype, transposed=number % 2 == 0)
        for self in (torch.randn(n).to(dtype), torch.randn(m, n).to(dtype), None)[: 3 if number < 2 else 1]:
            sum_ = mat1.float() @ mat2.float() + (0 if self is None else self.float())
            summand = None if self is None else self.to("mps")
            result, kept = addmm_epilogue_and_first(summand, mat1.to("mps"), mat2.to("mps"), name)
            close(kept, sum_, dtype)
            close(result, after([name], sum_), dtype)
            alone = addmm_epilogue(summand, mat1.to("mps"), mat2.to("mps"), name)
            assert torch.equal(alone, result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("use", ["_backward", "_mul", "_add"])
def test_operands(shape, dtype, use):
    m, n, k = shape
    for name in FUNCTIONS if m < 10 else ["gelu_tanh"]:
        mat1, mat2 = factors(m, n, k, dtype, transposed=False)
        x = torch.randn(m, n).to(dtype)
        result = addmm_epilogue(None, mat1.to("mps"), mat2.to("mps"), name + use, x.to("mps"))
        close(result, after([name + use], mat1.float() @ mat2.float(), x.float()), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [["add"], ["mul", "relu"], ["gelu", "add", "tanh", "mul"]])
def test_programs_of_steps(shape, dtype, steps):
    m, n, k = shape
    mat1, mat2 = factors(m, n, k, dtype, transposed=True)
    bias, x = torch.randn(n).to(dtype), torch.randn(m, n).to(dtype)
    sum_ = mat1.float() @ mat2.float() + bias.float()
    on_device = (t.to("mps") for t in (bias, mat1, mat2))
    result, kept = addmm_epilogue_and_first(*on_device, " ".join(steps), x.to("mps"))
    close(kept, sum_, dtype)
    close(result, after(steps, sum_, x.float()), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_of_another_dtype(dtype):
    mat1, mat2 = factors(33, 50, 64, dtype, transposed=True)
    x = torch.randn(33, 50)
    result = addmm_epilogue(None, mat1.to("mps"), mat2.to("mps"), "add", x.to("mps"), torch.float32)
    assert result.dtype == torch.float32
    assert_close(result.cpu(), mat1.float() @ mat2.float() + x, rtol=1e-4, atol=1e-4)


def test_operands_lie_as_the_results_or_are_copied():
    mat1, mat2 = factors(64, 64, 32, torch.float32, transposed=False)
    memory = torch.randn(64 * 66 + 1)
    rows = memory[: 64 * 66].view(64, 66)[:, :64]
    for x in (memory[1:4097].view(64, 64), rows, memory[:4096].view(64, 64).t()):
        result = addmm_epilogue(None, mat1.to("mps"), mat2.to("mps"), "add", strided_copy(x))
        close(result, mat1 @ mat2 + x, torch.float32)


def strided_copy(x):
    """On mps, at the same place of as much memory."""
    whole = torch.empty(0).set_(x.untyped_storage()).to("mps")
    return torch.as_strided(whole, x.size(), x.stride(), x.storage_offset())


def test_ends_of_the_range():
    x = torch.tensor([[-float("inf"), -1e30, -100.0, -0.0, 0.0, 100.0, 1e30, float("nan")]])
    one, zeros = torch.ones(1, 1, device="mps"), torch.zeros(1, 8, device="mps")
    for name in FUNCTIONS:
        result = addmm_epilogue(x.to("mps"), one, zeros, name)
        assert_close(result.cpu()[:, 1:], FUNCTIONS[name](x)[:, 1:], equal_nan=True)
        if name in ("sigmoid", "tanh"):
            continue
        grad = addmm_epilogue(None, one, zeros + 1, name + "_backward", x.to("mps"))
        assert_close(grad.cpu()[:, 2:6], after([name + "_backward"], torch.ones(1, 8), x)[:, 2:6])


def test_errors():
    a, b = torch.ones(2, 3, device="mps"), torch.ones(3, 4, device="mps")
    with pytest.raises(ValueError, match="there is no epilogue elu"):
        addmm_epilogue(None, a, b, "elu")
    with pytest.raises(ValueError, match="at most 4 steps"):
        addmm_epilogue(None, a, b, "relu relu relu relu relu")
    with pytest.raises(RuntimeError, match="expected steps"):
        addmm_epilogue(None, a, b, "")
    with pytest.raises(RuntimeError, match="expected an operand where"):
        addmm_epilogue(None, a, b, "add")
    with pytest.raises(RuntimeError, match="expected an operand where"):
        addmm_epilogue(None, a, b, "relu", b)
    with pytest.raises(RuntimeError, match="expected an operand of"):
        addmm_epilogue(None, a, b, "add", b)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        addmm_epilogue(None, b, b, "relu")
    with pytest.raises(RuntimeError, match="one dtype"):
        addmm_epilogue(None, a, b.half(), "relu")
    with pytest.raises(RuntimeError, match="floating point"):
        addmm_epilogue(None, a.int(), b.int(), "relu")
    with pytest.raises(RuntimeError, match="on the same device"):
        addmm_epilogue(a[0, 0], a.cpu(), b, "relu")
