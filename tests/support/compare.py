"""When two tensors agree: the allowed errors by dtype, of all families of operators, and the comparison."""

from __future__ import annotations

import torch


def _errors(single: float, half: float, bfloat: float) -> dict[torch.dtype, float]:
    return {torch.float32: single, torch.float16: half, torch.bfloat16: bfloat}


# Relative and absolute errors. The rounding of 16 bits is 2^-11 and 2^-8.
ROUNDED = _errors(1e-5, 2e-3, 1.6e-2)  # an operation and two roundings
ONE_CALL = _errors(1e-5, 2e-3, 2e-2)  # what `agree` allows, gradients included
SUMMED = _errors(2e-5, 4e-3, 3e-2)  # sums of a row or a window in another order: norms, resampling, epilogues
REDUCED = _errors(2e-5, 3e-3, 2e-2)  # reductions, which round once
SOFTMAX = _errors(2e-6, 2e-3, 1.6e-2)  # results up to 1
SOFTMAX_GRADIENT = _errors(5e-6, 1e-2, 6e-2)  # sums of a rounded output
LOSS = _errors(1e-5, 4e-3, 3e-2)
ATTENTION = _errors(2e-5, 5e-3, 4e-2)  # two products, and the probabilities between them in 16 bits
ATTENTION_LAYER = _errors(2e-5, 1e-2, 8e-2)  # four products
PROJECTED_ATTENTION_GRADIENT = _errors(2e-4, 2e-2, 1.5e-1)  # one sum of three gradients
RECURRENT = _errors(1e-4, 2e-2, 8e-2)  # grow from step to step

# Relative to the sum of the terms' magnitudes, or to the largest result.
PRODUCT = _errors(2e-6, 1e-3, 8e-3)  # twice the rounding of the result, and the f32 sums before it
CONVOLUTION = _errors(4e-6, 1.5e-3, 1.2e-2)
SCALED_PRODUCT = _errors(1e-5, 1e-3, 8e-3) | {torch.float8_e4m3fn: 0.07, torch.float8_e5m2: 0.13}

# Of one rounding of a gradient to 16 bits, and of sums of float32 in another order.
ONE_ROUNDING = _errors(1e-5, 2**-11, 2**-8)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal, and NaN where that is."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=0, atol=0, equal_nan=True)


def close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float | dict[torch.dtype, float] = ROUNDED,
    dtype: torch.dtype | None = None,
    scaled: bool = False,
) -> None:
    """A tensor of mps is the expected one, or that rounded to dtype; NaN where that is.

    A table has the tolerance of each dtype; others must be equal. scaled: as parts of the largest number, where that is
    above 1.
    """
    assert (actual.device.type, actual.dtype, actual.shape) == ("mps", dtype or expected.dtype, expected.shape)
    limit = tolerance.get(actual.dtype, 0.0) if isinstance(tolerance, dict) else tolerance
    scale = max(1.0, expected.abs().max().item()) if scaled and expected.numel() else 1.0
    wide = torch.promote_types(actual.dtype, expected.dtype)
    actual, expected = actual.detach().cpu().to(wide), expected.detach().to(wide)
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit * scale, equal_nan=True)
