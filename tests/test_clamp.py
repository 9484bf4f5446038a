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


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32], ids=str
)
def test_bounds_beyond_the_dtype(mps, dtype):
    """The CPU's results or errors, which PyTorch 2.15 changed: bounds are cut to the range of integers."""

    def outcome(function, x):
        try:
            return function(x).tolist()
        except RuntimeError as error:
            return str(error)

    x = torch.tensor([0, 1, 3, 100]).to(dtype)
    for bound in (-70000, -1, 0, 300, 70000, 2**40, -(2**40), 0.5):
        for function in (
            lambda x: x.clamp(min=bound),  # noqa: B023
            lambda x: x.clamp(max=bound),  # noqa: B023
            lambda x: x.clamp(bound, bound + 5),  # noqa: B023
            lambda x: torch.nn.functional.hardtanh(x, bound, bound + 5),  # noqa: B023
        ):
            assert outcome(function, x.to(mps)) == outcome(function, x), bound
