"""Tolerances of single random calls, (relative, absolute), where they follow from the call's arguments."""

from __future__ import annotations

import torch
from torch.testing._internal.opinfo.core import SampleInput


def largest(values: torch.Tensor) -> float:
    """The largest finite magnitude, 0 where there is none."""
    finite = values[values.isfinite()].abs()
    return finite.max().item() if finite.numel() else 0.0


def rounding_of_product(sample: SampleInput) -> tuple[float, float]:
    """The product is within 2^-24 of itself, or exact where additions are fused with it; the sum may cancel it."""
    product = sample.args[0].double() * sample.args[1].double()
    eps = torch.finfo(sample.input.dtype).eps if sample.input.dtype.is_floating_point else 0.0
    return max(1.3e-6, eps), max(1e-5, 2.0**-23 * largest(product))


def roundings_of_product(sample: SampleInput) -> tuple[float, float]:
    """n - 1 products in single precision, each within 2^-24 of itself in whatever order, and the result's own rounding.

    Equal factors come near: every rounding of a tree's level is the same one.
    """
    x, (dim,) = sample.input, sample.args
    last = torch.finfo(x.dtype).eps if x.dtype.is_floating_point else 0.0
    return x.size(dim) * 2.0**-24 + last, 1e-5


def roundings_of_running_sum(sample: SampleInput) -> tuple[float, float]:
    """n - 1 additions in single precision, each within 2^-24 of a partial sum; as errors of random signs, with room.

    The CPU carries sums on in double.
    """
    x, (dim,) = sample.input, sample.args
    return 1e-3, max(1e-4, 4 * x.size(dim) ** 0.5 * 2.0**-24 * largest(x.double().cumsum(dim)))
