"""mode, frexp, index_reduce."""

import pytest
import torch
from both_devices import agree, layouts

REAL = [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", [*REAL, torch.bool])
def test_mode(dtype, mps, no_fallback):
    for x in layouts((6, 5, 9)):
        x = (x * 2).round().abs().to(dtype)
        for dim in (-1, 0, 1):
            agree(lambda x, d=dim: tuple(torch.mode(x, d, keepdim=d == 0)), x, backward=x.is_floating_point())
    agree(lambda x: tuple(torch.mode(x)), torch.tensor(3).to(dtype), backward=False)
    agree(lambda x: tuple(torch.mode(x)), torch.zeros(0, 3, dtype=dtype), backward=False)


def test_mode_of_nan_and_long_rows(mps):
    x = torch.tensor([5.0, float("nan"), float("nan"), 1.0, 1.0, 5.0])
    agree(lambda x: torch.mode(x).values, x, backward=False)
    # The CPU's index is that of any equal element where rows are long or hold NaN.
    rows = torch.randint(0, 300, (2, 70_001))
    values, indices = torch.mode(rows.to(mps))
    assert torch.equal(values.cpu(), torch.mode(rows).values)
    assert torch.equal(rows.gather(1, indices.cpu()[:, None])[:, 0], values.cpu())
    with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
        torch.mode(torch.ones(3, 0, device=mps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_frexp(dtype, mps, no_fallback):
    special = torch.tensor([0.0, -0.0, 1.0, -3.0, 0.5, float("inf"), float("-inf"), float("nan"), 6e-8, 65504.0, -1e-6])
    agree(lambda x: tuple(torch.frexp(x)), special.to(dtype), backward=False)
    for x in layouts((5, 70), dtype):
        agree(lambda x: tuple(torch.frexp(x)), x * 1000, backward=False)
    agree(lambda x: torch.frexp(x).mantissa, torch.randn(9).to(dtype))


def test_frexp_errors(mps):
    x = torch.ones(2, device=mps)
    with pytest.raises(RuntimeError, match="only supports floating-point dtypes"):
        torch.frexp(x.int())
    with pytest.raises(RuntimeError, match="expects exponent to have int dtype but got float"):
        torch.frexp(x, out=(x.clone(), x.clone()))


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("dtype", REAL)
def test_index_reduce(reduce, include_self, dtype, mps, no_fallback):
    floating = dtype.is_floating_point
    make = (lambda *s: torch.rand(*s).add(0.5).to(dtype)) if floating else (lambda *s: torch.randint(0, 4, s).to(dtype))
    for index_type in (torch.int32, torch.int64):
        agree(
            lambda x, i, s: x.index_reduce(1, i, s, reduce, include_self=include_self),
            make(3, 5, 4),
            torch.tensor([1, 4, 1, 0, 1, 4]).to(index_type),
            make(3, 6, 4),
            backward=dtype == torch.float32 and index_type == torch.int64,
        )
    agree(
        lambda x, i, s: x.index_reduce(0, i, s, reduce, include_self=include_self),
        make(5)[2],
        torch.tensor(0),
        make(5)[3],
        backward=False,
    )


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce_errors(mps):
    x, i = torch.ones(3, device=mps), torch.tensor([0, 1], device=mps)
    with pytest.raises(NotImplementedError, match="\"index_func_\" not implemented for 'Bool'"):
        x.bool().index_reduce(0, i, x[:2].bool(), "prod")
    with pytest.raises(torch.AcceleratorError, match="index_reduce"):
        x.index_reduce(0, i + 2, x[:2], "amax")
        torch.mps.synchronize()
