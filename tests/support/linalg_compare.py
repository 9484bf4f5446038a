"""Linear algebra on mps against the CPU: what its tests share."""

from __future__ import annotations

import pytest
import torch


def well_conditioned(*shape: int) -> torch.Tensor:
    return torch.randn(shape) + shape[-1] ** 0.5 * 2 * torch.eye(shape[-2], shape[-1])


def as_tuple(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def assert_like_cpu(function, *inputs: torch.Tensor, tolerance: float = 1e-4, gradients: bool = False) -> None:
    """Results, and gradients of all floating inputs, as on the CPU."""
    outcomes = []
    for device in ("cpu", "mps"):
        leaves = [t.to(device).requires_grad_(gradients and t.is_floating_point()) for t in inputs]
        results = as_tuple(function(*leaves))
        if gradients:
            loss = sum((r * torch.linspace(-1, 1, r.numel()).reshape(r.shape).to(device)).sum() for r in results)
            results += torch.autograd.grad(loss, [t for t in leaves if t.requires_grad])
        outcomes.append([r.detach().cpu() for r in results])
    for expected, actual in zip(*outcomes, strict=True):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        scale = float(expected.abs().max()) if expected.numel() else 1
        scale = max(scale, 1e-2)  # what is 0 but for rounding has no scale of its own
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * scale)


def assert_same_error(function, *inputs: torch.Tensor) -> None:
    with pytest.raises(Exception) as on_cpu:  # noqa: PT011 - whatever the CPU says
        function(*inputs)
    with pytest.raises(type(on_cpu.value)) as on_mps:
        function(*(t.to("mps") for t in inputs))
    assert str(on_mps.value).split("\n")[0] == str(on_cpu.value).split("\n")[0]
