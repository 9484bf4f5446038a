"""clamp with every kind of bound, numbers and tensors, beside the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_pointwise import FLOATS, INTEGERS, NAN, on_device, ordinary, outcome, same

BOUNDS = (
    None,
    1,
    -0.5,
    True,
    NAN,
    torch.tensor(2),
    torch.tensor([0.25, 1.0, -1.0, 3.0]),
    torch.tensor([True, False] * 2),
)


@pytest.mark.parametrize("dtype", [*FLOATS[:2], *INTEGERS[:3], torch.bool, torch.uint16, torch.complex64], ids=str)
def test_clamp(dtype):
    x = ordinary(dtype, 12, seed=0).view(3, 4)
    for low, high in itertools.product(BOUNDS, BOUNDS):
        if isinstance(low, torch.Tensor) != isinstance(high, torch.Tensor) and low is not None and high is not None:
            continue
        kwargs = {"input": x, "min": low, "max": high}
        moved = on_device(kwargs)
        same(outcome(torch.clamp, moved), outcome(torch.clamp, kwargs), f"clamp of {dtype} to {low}, {high}")
        kwargs["out"] = torch.empty(0, dtype=dtype)
        moved = on_device(kwargs)
        same(outcome(torch.clamp, moved), outcome(torch.clamp, kwargs), f"clamp of {dtype} to {low}, {high}, out")
