"""Products of integers, packed weights and groups, and with a dtype of the result: against the CPU or the formula."""

from __future__ import annotations

import pytest
import torch
from both_devices import agree
from compare import ONE_CALL as MATRIX

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
HALVES = [torch.float16, torch.bfloat16]


def close(actual, expected, dtype, scale=1.0):
    limit = MATRIX[dtype]
    torch.testing.assert_close(actual.cpu().float(), expected.float(), rtol=limit, atol=limit * scale)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (33, 64, 31), (17, 300, 40), (0, 4, 3), (2, 0, 3)])
@pytest.mark.parametrize("left", [torch.int8, torch.uint8])
def test_int_mm(shape, left, mps):
    m, k, n = shape
    a = torch.randint(*((0, 256) if left == torch.uint8 else (-128, 128)), (m, k), dtype=left)
    b = torch.randint(-128, 128, (k, n), dtype=torch.int8)
    expected = (a.long() @ b.long()).int()
    for right in (b.to(mps), b.t().contiguous().to(mps).t()):
        assert torch.equal(torch._int_mm(a.to(mps), right).cpu(), expected)
    out = torch.empty(m, n, dtype=torch.int32, device=mps)
    assert torch._int_mm(a.to(mps), b.to(mps), out=out) is out
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch._int_mm(x(2).char(), x(2, 3).char()),
        lambda x: torch._int_mm(x(2, 2).char(), x(3, 3).char()),
        lambda x: torch._int_mm(x(2, 3), x(3, 3).char()),
        lambda x: torch._int_mm(x(2, 3).char(), x(3, 3).byte()),
        lambda x: torch._int_mm(x(2, 3).char(), x(3, 3).char(), out=x(2, 3)),
        lambda x: torch._int_mm(x(2, 3).char(), x(3, 3).char(), out=x(2, 4).int()),
        lambda x: torch._int_mm(x(2, 3).char(), x(3, 3).char(), out=x(3, 2).int().t()),
        lambda x: torch._weight_int8pack_mm(x(2, 4), x(3, 5).char(), x(3)),
        lambda x: torch._weight_int8pack_mm(x(2, 4), x(3, 4).char(), x(4)),
        lambda x: torch._weight_int8pack_mm(x(2, 4).int(), x(3, 4).char(), x(3)),
        lambda x: torch._weight_int8pack_mm(x(2, 4), x(3, 4).byte(), x(3)),
        lambda x: torch._weight_int8pack_mm(x(4, 2).t(), x(3, 4).char(), x(3)),
        lambda x: torch._weight_int8pack_mm(x(2, 4), x(4, 3).char().t(), x(3)),
        lambda x: torch._grouped_mm(x(4, 8), x(2, 4, 8)),
        lambda x: torch._grouped_mm(x(4, 8), x(2, 8, 8)),
        lambda x: torch._grouped_mm(x(4, 8), x(2, 8, 8), x(3).int()),
        lambda x: torch._grouped_mm(x(4, 8), x(2, 8, 8), x(2).long()),
        lambda x: torch._grouped_mm(x(4, 8), x(2, 8, 8), x(2).int(), bias=x(8)),
        lambda x: torch._grouped_mm(x(4, 8), x(2, 8, 8), x(2).int(), out_dtype=torch.float16),
        lambda x: torch._grouped_mm(x(4, 8).int(), x(2, 8, 8), x(2).int()),
        lambda x: torch._grouped_mm(x(2, 4, 8), x(3, 8, 8)),
    ],
)
def test_errors(call, raises_as_on_the_cpu):
    raises_as_on_the_cpu(call)


@pytest.mark.parametrize("dtype", HALVES)
def test_dtype_of_the_result(dtype, mps):
    a, b = torch.randn(37, 50).to(dtype), torch.randn(50, 21).to(dtype)
    left, right = torch.randn(3, 9, 40).to(dtype), torch.randn(3, 40, 11).to(dtype)
    bias, biases = torch.randn(21).to(dtype), torch.randn(9, 1).to(dtype)
    product, products = a.float() @ b.float(), left.float() @ right.float()
    d = lambda t: t.to(mps)  # noqa: E731
    float32 = torch.float32
    for actual, expected in (
        (torch.mm(d(a), d(b), float32), product),
        (torch.mm(d(a.t().contiguous()).t(), d(b), out_dtype=float32), product),
        (torch.bmm(d(left), d(right), float32), products),
        (torch.addmm(d(bias), d(a), d(b), float32, beta=2, alpha=0.5), 2 * bias + 0.5 * product),
        (torch.addmm(d(bias).float(), d(a), d(b), float32), bias + product),
        (torch.baddbmm(d(biases), d(left), d(right), float32, beta=0.5), 0.5 * biases + products),
    ):
        assert actual.dtype == float32
        close(actual, expected, float32, scale=10)
    out = torch.empty(0, dtype=float32, device=mps)
    assert torch.mm(d(a), d(b), float32, out=out) is out
    close(out, product, float32, scale=10)
    close(torch.mm(d(a), d(b), dtype), product, dtype, scale=10)


def test_dtype_of_the_result_is_checked(mps):
    half, single = torch.ones(2, 2, dtype=torch.half, device=mps), torch.ones(2, 2, device=mps)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"):
        torch.mm(half, half, torch.bfloat16)
    with pytest.raises(RuntimeError, match="input dtypes must be the same"):
        torch.mm(half, single, torch.float32)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.mm(half, half[:1], torch.float32)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as the dtype of the provided out tensor"):
        torch.mm(half, half, torch.float32, out=torch.empty(2, 2, dtype=torch.half, device=mps))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 8, 3), (3, 31, 17), (5, 64, 40), (40, 129, 33), (0, 8, 3), (2, 0, 3)])
def test_int8_weights(shape, dtype, mps):
    m, k, n = shape
    a = torch.randn(m, k + 3).to(dtype)[:, 1 : k + 1]
    weight, scales = torch.randint(-128, 128, (n, k), dtype=torch.int8), (torch.rand(n) / 64).to(dtype)
    expected = a.float() @ (weight.float() * scales.float()[:, None]).t()
    strided = torch.stack((scales, scales), 1).to(mps)[:, 0]
    for given in (scales.to(mps), strided):
        actual = torch._weight_int8pack_mm(a.to(mps), weight.to(mps), given)
        assert actual.dtype == dtype and actual.shape == (m, n)
        close(actual, expected, dtype, scale=10)


def packed_int4(n, k):
    """Numbers of 4 bits and how _convert_weight_to_int4pack takes them."""
    q = torch.randint(0, 16, (n, k), dtype=torch.int32)
    return q, (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 3, 16, 33])
@pytest.mark.parametrize(("group", "tiles"), [(32, 2), (64, 4), (128, 8), (256, 2)])
def test_int4_weights(rows, group, tiles, dtype, mps):
    n, k = 24, 512
    q, pairs = packed_int4(n, k)
    scales = torch.stack((torch.rand(k // group, n) / 8, torch.randn(k // group, n)), 2).to(dtype)
    scale, zero = (scales[..., i].float().repeat_interleave(group, 0).t() for i in range(2))
    weight = (q.float() - 8) * scale + zero
    a = torch.randn(rows, k).to(dtype)
    packed = torch._convert_weight_to_int4pack(pairs.to(mps), tiles)
    assert packed.shape == (n // 8, k // (16 * tiles), 32, tiles // 2) and packed.dtype == torch.int32
    actual = torch._weight_int4pack_mm(a.to(mps), packed, group, scales.to(mps))
    assert actual.dtype == dtype
    close(actual, a.float() @ weight.t(), dtype, scale=40)
    # Scales and zeros with other strides.
    flipped = scales.transpose(0, 1).contiguous().transpose(0, 1).to(mps)
    assert torch.equal(torch._weight_int4pack_mm(a.to(mps), packed, group, flipped), actual)


def test_int4_weights_are_checked(mps):
    _, pairs = packed_int4(8, 64)
    packed = torch._convert_weight_to_int4pack(pairs.to(mps), 2)
    a, scales = torch.randn(2, 64, device=mps), torch.randn(2, 8, 2, device=mps)
    short = a[:, :32].contiguous()
    for message, call in {
        "innerKTiles need to be 2, 4, or 8": lambda: torch._convert_weight_to_int4pack(pairs.to(mps), 3),
        "expect N to be divisible by 8": lambda: torch._convert_weight_to_int4pack(pairs[:7].to(mps), 2),
        "expect K to be divisible by 128": lambda: torch._convert_weight_to_int4pack(pairs.to(mps), 8),
        "expect weight to be kByte": lambda: torch._convert_weight_to_int4pack(pairs.int().to(mps), 2),
        "expect qGroupSize to be 32": lambda: torch._weight_int4pack_mm(a, packed, 16, scales),
        "expect B to hold 32 numbers a row": lambda: torch._weight_int4pack_mm(short, packed, 32, scales),
        "expect qScaleAndZeros to be 3d": lambda: torch._weight_int4pack_mm(a, packed, 32, scales[:, :4]),
        "expect qScaleAndZeros to hold 2 groups": lambda: torch._weight_int4pack_mm(a, packed, 32, scales[:1]),
        "expect A to be contiguous": lambda: torch._weight_int4pack_mm(a.t(), packed, 32, scales),
    }.items():
        with pytest.raises(RuntimeError, match=message):
            call()


def ends(*sizes):
    return torch.tensor(sizes, dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(5, 0, 19, 40), (0, 0), (64,), (1, 2, 3, 4, 134)])
def test_groups(dtype, sizes, mps):
    total, groups = sum(sizes), len(sizes)
    offsets = ends(*sizes)
    tolerance = MATRIX[dtype] * 5
    if total > 0:
        rows, columns = torch.randn(total, 40).to(dtype), torch.randn(40, total).to(dtype)
        agree(torch._grouped_mm, rows, torch.randn(groups, 40, 24).to(dtype), offsets, tolerance=tolerance)
        agree(torch._grouped_mm, rows, torch.randn(groups, 24, 40).to(dtype).mT, offsets, tolerance=tolerance)
        agree(torch._grouped_mm, torch.randn(groups, 48, 40).to(dtype), columns, offsets, tolerance=tolerance)
        agree(torch._grouped_mm, columns, rows, offsets, tolerance=tolerance, backward=False)
        agree(torch._grouped_mm, rows.t(), rows, offsets, tolerance=tolerance, backward=False)
    agree(torch._grouped_mm, torch.randn(2, 9, 16).to(dtype), torch.randn(2, 16, 8).to(dtype), tolerance=tolerance)


def test_ends_that_no_group_has(mps):
    """Ends outside of the matrix, or before their beginning, are cut: nothing else is read or written."""
    a, b = torch.randn(8, 16, device=mps), torch.randn(3, 16, 8, device=mps)
    actual = torch._grouped_mm(a, b, torch.tensor([5, 2, 900], dtype=torch.int32, device=mps))
    torch.testing.assert_close(actual[:5], a[:5] @ b[0])
    torch.testing.assert_close(actual[5:], a[5:] @ b[2])


def test_grouped_gradient_of_linear_layers(mps):
    """The way of a mixture of experts: rows by group, gradients by rows and by k."""
    agree(
        lambda x, w, offsets: torch.nn.functional.silu(torch._grouped_mm(x, w, offsets)).sum(1),
        torch.randn(48, 32),
        torch.randn(4, 32, 16),
        ends(8, 0, 24, 16),
        tolerance=1e-4,
    )
