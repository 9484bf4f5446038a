"""Arithmetic that is no row of pointwise.yaml, against the CPU."""

from __future__ import annotations

import pytest
import torch


def test_sum_above_zero():
    """_add_relu is no row: PyTorch's own keeps the largest number in place of infinity."""
    a, b = torch.tensor([1.5, -2, 3e38, float("inf"), 0.5]), torch.tensor([1, 1, 3e38, 1, -1.0])
    for x, y in ((a, b), (a[:3].int(), b[:3].int()), (a, torch.tensor(2.0)), (a, 2), (a.reshape(5, 1), b.int())):
        x_mps, y_mps = x.to("mps"), y.to("mps") if isinstance(y, torch.Tensor) else y
        expected = torch._add_relu(x, y, alpha=2)
        torch.testing.assert_close(torch._add_relu(x_mps, y_mps, alpha=2).cpu(), expected)
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(
                torch._add_relu(x_mps, y_mps, alpha=2, out=torch.empty_like(expected, device="mps")), expected.to("mps")
            )
        if expected.shape == x.shape:
            torch._add_relu_(x_mps, y_mps, alpha=2)
            torch.testing.assert_close(x_mps.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool])
def test_dequantize_of_plain_numbers(dtype):
    x = torch.tensor([0, 1, 1]).to(dtype)
    actual = x.to("mps").dequantize()
    assert actual.dtype == x.dequantize().dtype == torch.float32
    torch.testing.assert_close(actual.cpu(), x.dequantize())
