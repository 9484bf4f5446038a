#!/usr/bin/env python3
"""Errors of float16 operators of PyTorch's op_db, eager and compiled on mps, beside the CPU in float64.

    float16_errors.py [--seed 0] remainder special.erfcx std_mean:unbiased     names, with a colon before a variant

Prints, for each operator, the largest error of results and gradients in half units of the last place of float16 (0.5
is that of a value rounded once), and how many values are finite in one of the three alone. Exit code 1 where compiled
code is more than half as far again from the exact results as eager's operators, over all samples.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

SAMPLES = 12
LEAST_NORMAL = 2.0**-14
HALF_UNIT = 2.0**-11


def results_and_gradients(function, sample, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Those of a sample of float16, computed in `dtype` on a device; float64 on the CPU, complex ones as pairs."""
    leaves = []

    def moved(value):
        if not isinstance(value, torch.Tensor):
            return dtype if value is torch.float16 else value
        copy = value.detach().to(device, dtype if value.dtype == torch.float16 else value.dtype, copy=True)
        if value.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    first, arguments, named = pytree.tree_map(moved, (sample.input, sample.args, sample.kwargs))
    results = [t for t in pytree.tree_leaves(function(first, *arguments, **named)) if isinstance(t, torch.Tensor)]
    if roots := [t for t in results if t.requires_grad]:
        weights = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape).to(t) for t in roots]
        results += [g for g in torch.autograd.grad(roots, leaves, weights, allow_unused=True) if g is not None]
    real = [torch.view_as_real(t) if t.is_complex() else t for t in results]
    return [t.detach().cpu().double() for t in real]


def errors_of(op) -> tuple[float, float, int]:
    """Largest errors of eager and of compiled code, and the count of values that are not finite in all three."""
    eager, compiled, infinite = 0.0, 0.0, 0
    for sample in list(op.sample_inputs("mps", torch.float16, requires_grad=op.supports_autograd))[:SAMPLES]:
        torch._dynamo.reset()
        exact = results_and_gradients(op, sample, "cpu", torch.float64)
        single = results_and_gradients(op, sample, "mps", torch.float16)
        fused = results_and_gradients(torch.compile(op), sample, "mps", torch.float16)
        for want, one, other in zip(exact, single, fused, strict=True):
            finite = torch.isfinite(want.half()) & torch.isfinite(one) & torch.isfinite(other)
            infinite += int((torch.isfinite(want.half()) ^ finite).sum())
            unit = HALF_UNIT * want.abs().clamp_min(LEAST_NORMAL)
            errors = [((got - want).abs() / unit)[finite] for got in (one, other)]
            if errors[0].numel():
                eager, compiled = max(eager, errors[0].max().item()), max(compiled, errors[1].max().item())
    return eager, compiled, infinite


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    worse = False
    for name in arguments.operators:
        wanted = name.split(":") if ":" in name else [name, ""]
        for op in (op for op in op_db if [op.name, op.variant_test_name] == wanted):
            torch.manual_seed(arguments.seed)
            eager, compiled, infinite = errors_of(op)
            worse |= compiled > 1.5 * eager + 1
            print(f"{name}: eager {eager:.2f}, compiled {compiled:.2f} half units, {infinite} not finite", flush=True)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
