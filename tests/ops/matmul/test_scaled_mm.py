"""Products of float8 matrices: scales of a whole matrix and of rows, bias, every output dtype, errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compare import SCALED_PRODUCT as TOLERANCE

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OUTPUTS = (torch.float32, torch.bfloat16, torch.float16, E4M3, E5M2)


def operands(m, k, n, a=E4M3, b=E4M3):
    return torch.randn(m, k).to(a), torch.randn(n, k).to(b).t()


def reference(a, b, scale_a, scale_b, bias=None):
    product = (a.double() * scale_a) @ (b.double() * scale_b)
    return product if bias is None else product + bias.double()


def check(got, want, dtype):
    assert got.dtype == dtype and got.device.type == "mps"
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(got.cpu().double(), want, rtol=limit, atol=limit * want.abs().max().item())


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    "types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)]
)
def test_one_scale_a_matrix(output, types, mps, no_fallback):
    a, b = operands(17, 48, 33, *types)
    scale_a, scale_b, bias = torch.tensor(0.7), torch.tensor([0.4]), torch.randn(33)
    for other in (None, bias, bias.bfloat16()):
        got = torch._scaled_mm(
            a.to(mps),
            b.to(mps),
            scale_a.to(mps),
            scale_b.to(mps),
            bias=None if other is None else other.to(mps),
            out_dtype=output,
        )  # fmt: skip
        check(got, reference(a, b, scale_a, scale_b, other), output)


@pytest.mark.parametrize("output", OUTPUTS[:3])
def test_one_scale_a_row(output, mps, no_fallback):
    a, b = operands(17, 48, 33)
    scale_a, scale_b, bias = torch.rand(17, 1) + 0.1, torch.rand(1, 33) + 0.1, torch.randn(33)
    want = reference(a, b, scale_a, scale_b, bias)
    ours = [t.to(mps) for t in (a, b, scale_a, scale_b, bias)]
    check(torch._scaled_mm(*ours[:4], bias=ours[4], out_dtype=output), want, output)
    recipe = F.ScalingType.RowWise
    got = F.scaled_mm(ours[0], ours[1], ours[2], recipe, ours[3], recipe, bias=ours[4], output_dtype=output)
    check(got, want, output)
    whole = F.ScalingType.TensorWise
    one = torch.tensor(0.5)
    got = F.scaled_mm(ours[0], ours[1], one.to(mps), whole, one.to(mps), whole, output_dtype=output)
    check(got, reference(a, b, one, one), output)


def test_results_of_float8_are_scaled(mps):
    a, b = operands(4, 16, 8)
    one, three = torch.tensor(1.0, device=mps), torch.tensor(3.0, device=mps)
    got = torch._scaled_mm(a.to(mps), b.to(mps), one, one, scale_result=three, out_dtype=E4M3)
    check(got, reference(a, b, 1.0, 1.0) / 3, E4M3)
    assert torch._scaled_mm(a.to(mps), b.to(mps), one, one).dtype == E4M3


def test_layouts_out_and_empty(mps):
    a, b = operands(6, 32, 5)
    one = torch.tensor(1.0, device=mps)
    want = reference(a, b, 1.0, 1.0)
    out = torch.empty(0, device=mps)
    assert torch._scaled_mm(a.to(mps), b.to(mps).contiguous(), one, one, out_dtype=torch.float32, out=out) is out
    check(out, want, torch.float32)
    check(
        torch._scaled_mm(a.to(mps)[::2], b.to(mps)[:, 1:], one, one, out_dtype=torch.float32),
        want[::2, 1:],
        torch.float32,
    )
    for m, k, n in ((0, 16, 5), (6, 0, 5), (6, 16, 0)):
        got = torch._scaled_mm(*(t.to(mps) for t in operands(m, k, n)), one, one, out_dtype=torch.float32)
        assert got.shape == (m, n) and not got.any()


def test_infinity_and_nan(mps):
    a, b = torch.ones(2, 16).to(E5M2), torch.ones(16, 3).to(E5M2)
    a[0, 3], a[1, 2] = float("inf"), float("nan")
    one = torch.tensor(1.0, device=mps)
    got = torch._scaled_mm(a.to(mps), b.to(mps), one, one, out_dtype=torch.float32).cpu()
    assert got[0].isinf().all() and got[1].isnan().all()


def test_errors(mps, raises_as_on_the_cpu):
    def call(ones, m=4, k=16, n=6, scales=((), ()), dtype=E4M3, **others):
        options = {name: value(ones) if callable(value) else value for name, value in others.items()}
        return torch._scaled_mm(ones(m, k).to(dtype), ones(16, n).to(dtype), *(ones(*s) for s in scales), **options)

    # What the CPU says of these depends on which kernel its instructions allow.
    on_mps = lambda *shape: torch.ones(shape, device=mps)  # noqa: E731
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(4x15 and 16x6\)"):
        call(on_mps, k=15, out_dtype=torch.float32)
    with pytest.raises(RuntimeError, match="Expected mat1 to be Float8 matrix got Float"):
        call(on_mps, dtype=torch.float32, out_dtype=torch.float32)
    raises_as_on_the_cpu(lambda ones: call(ones, bias=lambda ones: ones(5), out_dtype=torch.float32))
    raises_as_on_the_cpu(lambda ones: call(ones, scales=((3, 1), (1, 6)), out_dtype=torch.float32))
    raises_as_on_the_cpu(lambda ones: call(ones, scales=((4, 1), (1, 5)), out_dtype=torch.float32))
    with pytest.raises(RuntimeError, match="out_dtype must match output matrix type"):
        call(on_mps, out_dtype=torch.float32, out=lambda ones: ones(4, 6).half())
    with pytest.raises(ValueError, match="Invalid scaling configuration"):
        blocks = F.ScalingType.BlockWise1x128
        ones = torch.ones(4, 1, device=mps)
        x = torch.ones(4, 128, device=mps).to(E4M3)
        F.scaled_mm(x, x.t(), ones, blocks, ones, blocks, output_dtype=torch.float32)
