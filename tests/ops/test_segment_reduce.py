"""segment_reduce: reductions, lengths and offsets, axes, empty segments, NaN."""

import pytest
import torch
from both_devices import agree, layouts

REDUCTIONS = ("sum", "mean", "max", "min", "prod")


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("initial", [None, 1.5])
@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
def test_lengths_and_offsets(reduce, initial, index_type, mps, no_fallback):
    lengths = torch.tensor([3, 0, 2, 4], dtype=index_type)
    offsets = torch.tensor([0, 3, 3, 5, 9], dtype=index_type)
    for x in layouts((9, 5)):
        agree(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, initial=initial), x, lengths)
    agree(lambda x, n: torch.segment_reduce(x, reduce, offsets=n, initial=initial), torch.randn(9, 2, 3), offsets)
    agree(lambda x, n: torch.segment_reduce(x, reduce, offsets=n, initial=initial), torch.randn(9), offsets)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_other_axis(reduce, mps):
    lengths = torch.tensor([[3, 0, 2], [1, 1, 3]])
    agree(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1), torch.randn(2, 5, 4), lengths)
    agree(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1, unsafe=True), torch.randn(2, 6, 4), lengths)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_special_values(reduce, mps):
    x = torch.tensor([2.0, 0.0, 2.0, float("nan"), 1.0, float("inf"), 0.0, 0.0, -1.0])
    agree(lambda x, n: torch.segment_reduce(x, reduce, lengths=n), x, torch.tensor([3, 2, 0, 4]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype, mps):
    agree(lambda x, n: torch.segment_reduce(x, "max", lengths=n), torch.randn(9, 5).to(dtype), torch.tensor([4, 5]))


def test_gradient_of_a_product_that_a_half_cannot_hold(mps):
    x, lengths = torch.tensor([90.0, 80.0, 70.0, 3.0, 0.3, 7.0]), torch.tensor([3, 3])
    wanted = x[:3].prod() / x[:3], x[3:].prod() / x[3:]
    leaf = x.half().to(mps).requires_grad_()
    result = torch.segment_reduce(leaf, "prod", lengths=lengths.to(mps))
    assert result.isinf().tolist() == [True, False]
    (got,) = torch.autograd.grad(result.sum(), leaf)
    torch.testing.assert_close(got.cpu().float(), torch.cat(wanted), rtol=1e-3, atol=0)


def test_wrong_arguments(mps):
    x = torch.ones(4, 2, device=mps)
    with pytest.raises(RuntimeError, match="lengths contains negative value!"):
        torch.segment_reduce(x, "sum", lengths=torch.tensor([5, -1], device=mps))
    with pytest.raises(RuntimeError, match="Expected all rows of lengths along axis to sum to"):
        torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 4], device=mps))
    with pytest.raises(torch.AcceleratorError, match="segment_reduce"):
        torch.segment_reduce(x, "sum", offsets=torch.tensor([0, 9], device=mps))
        torch.mps.synchronize()
