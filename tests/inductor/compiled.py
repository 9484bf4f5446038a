"""A function compiled for mps beside the same function on the CPU. What the tests of torch.compile share."""

from __future__ import annotations

import torch
from compare import SUMMED as TOLERANCE
from op_db_compare import map_tensors, tensors_in
from op_db_support import DEVICE
from torch._inductor.utils import fresh_cache
from torch.testing import assert_close


def compiled_agrees(function, *arguments, dynamic=None, backward=False, tolerance=None, equal=False) -> list[str]:
    """function(*arguments), compiled, gives on mps what it gives on the CPU without; so do gradients.

    equal: to the bit what it gives on mps without compilation. Returns the generated modules.
    """
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    devices = (DEVICE if equal else torch.device("cpu"), DEVICE)
    results = []
    codes: list[str] = []
    for device, call in zip(devices, (function, compiled)):
        inputs = map_tensors(arguments, lambda t, d=device: t.detach().to(d, copy=True).requires_grad_(t.requires_grad))
        leaves = [t for t in tensors_in(inputs) if t.requires_grad]
        if call is compiled:
            (result, grads), codes = _run_and_get_code(lambda i=inputs, x=leaves: _run(compiled, i, x, backward))
        else:
            result, grads = _run(call, inputs, leaves, backward)
        results.append((tensors_in(result), grads, tensors_in(inputs)))
    (expected, expected_grads, expected_inputs), (actual, actual_grads, actual_inputs) = results
    assert len(actual) == len(expected)
    wanted = [*expected, *expected_grads, *expected_inputs]
    for got, want in zip([*actual, *actual_grads, *actual_inputs], wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        limit = 0 if equal else TOLERANCE.get(want.dtype, 2e-5) if tolerance is None else tolerance
        assert_close(got.detach().cpu(), want.detach().cpu(), rtol=limit, atol=limit, equal_nan=True)
    return codes


def _run(call, inputs, leaves, backward):
    result = call(*inputs)
    if not backward:
        return result, []
    loss = sum(
        (t.float() * torch.arange(1, t.numel() + 1, device=t.device).view(t.shape).sin()).sum()
        for t in tensors_in(result)
        if t.is_floating_point()
    )
    return result, list(torch.autograd.grad(loss, leaves))


def _run_and_get_code(function):
    from torch._inductor.utils import run_and_get_code

    with fresh_cache():
        return run_and_get_code(function)


def calls(codes: list[str], word: str) -> int:
    """How often a text stands in generated modules."""
    return sum(code.count(word) for code in codes)


def kernel_count(codes: list[str]) -> int:
    """Generated kernels that the modules define."""
    return sum(code.count("= mps_kernel(") for code in codes)
