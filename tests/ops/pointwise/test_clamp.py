"""clamp with every kind of bound, numbers and tensors, beside the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_pointwise import FLOATS, INTEGERS, NAN, UNSIGNED, on_device, ordinary, outcome, same

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
DTYPES = [torch.float32, *INTEGERS]
if torch.__version__ >= "2.15":  # the CPU refuses them before
    DTYPES += UNSIGNED


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bounds_beyond_the_dtype(mps, dtype):
    """The CPU's results or errors, which PyTorch 2.15 changed: bounds are cut to the range of integers."""
    calls = [
        lambda x, bound: x.clamp(min=bound),
        lambda x, bound: x.clamp(max=bound),
        lambda x, bound: x.clamp(bound, bound + 5),
        lambda x, bound: torch.clamp_min(x, bound),
        lambda x, bound: torch.clamp_max(x, bound),
        lambda x, bound: torch.clamp_max_(x, bound),
        lambda x, bound: torch.nn.functional.hardtanh(x, bound, bound + 5),
        lambda x, bound: torch._foreach_clamp_min([x], bound)[0],
    ]
    for x in (torch.tensor([0, 1, 3, 100]).to(dtype), torch.empty(0, dtype=dtype)):
        for bound, call in itertools.product((-70000, -1, 0, 300, 70000, 2**40, -(2**40), 0.5), calls):
            actual, expected = (outcome(call, {"x": y, "bound": bound}) for y in (x.to(mps), x.clone()))
            same(actual, expected, f"{dtype}, {bound}")


def test_the_greatest_integers_without_a_sign(mps):
    """Those from 2^63 on, which are negative numbers of 64 bits."""
    x, y = (torch.tensor(v, dtype=torch.uint64) for v in ([0, 5, 2**63, 2**64 - 1], [7, 2**64 - 2, 1, 2**63 + 1]))
    for function, expected in (
        (torch.maximum, [7, 2**64 - 2, 2**63, 2**64 - 1]),
        (torch.minimum, [0, 5, 1, 2**63 + 1]),
        (lambda a, b: a.clamp(max=2**63 + 5), [0, 5, 2**63, 2**63 + 5]),
        (lambda a, b: torch.relu(a), x.tolist()),
    ):
        assert function(x.to(mps), y.to(mps)).tolist() == expected
