"""One call on the CPU and on mps: results, in-place changes and gradients compared. What area tests share."""

from __future__ import annotations

import warnings

import torch
from compare import ONE_CALL, same
from op_db_compare import map_tensors, tensors_in
from op_db_support import DEVICE, copied, cotangents, gradients

import torch_anymps

REAL_DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def agree(function, *arguments, tolerance: float | None = None, backward: bool = True) -> None:
    """function(*arguments) gives the same on both devices, and so do the gradients of its floating arguments.

    Tensors are copied with their strides and offsets. The memory of the device is filled with NaN before, so that an
    element that is not written shows.
    """
    results = []
    given = None
    for device in (torch.device("cpu"), DEVICE):
        if device == DEVICE:
            spoil_memory()
        storages: dict = {}
        call = map_tensors(arguments, lambda t, d=device, s=storages: copied(t, d, s))
        leaves = [t.requires_grad_(backward) for t in tensors_in(call) if t.is_floating_point() or t.is_complex()]
        with torch.set_grad_enabled(backward):
            result = function(*call)
        given = cotangents(result) if given is None else given
        found = gradients(result, leaves, given) if backward else None
        results.append((tensors_in(result), found or ()))
    (expected, expected_gradients), (actual, actual_gradients) = results
    assert len(actual) == len(expected) and len(actual_gradients) == len(expected_gradients)
    for got, want in zip((*actual, *actual_gradients), (*expected, *expected_gradients)):
        assert (got is None) == (want is None)
        if want is None:
            continue
        limit = ONE_CALL.get(want.dtype, 1e-5) if tolerance is None else tolerance
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=limit, atol=limit, equal_nan=True)


def same_outcome(function) -> None:
    """function(device) gives the same tensors, dtypes and warnings on both devices, or the same error."""
    outcomes = []
    for device in (torch.device("cpu"), DEVICE):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.set_warn_always(True)  # what PyTorch says once in a process may have been said
            try:
                outcome = [t.detach().cpu() for t in tensors_in(function(device))]
            except Exception as error:  # whatever the CPU raises
                outcome = error
            finally:
                torch.set_warn_always(False)
        outcomes.append((outcome, [str(w.message).partition(" (Triggered")[0] for w in said]))
    (expected, expected_words), (actual, actual_words) = outcomes
    assert actual_words == expected_words
    if isinstance(expected, Exception):
        assert (type(actual), str(actual)) == (type(expected), str(expected))
        return
    if isinstance(actual, Exception):
        raise actual
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        same(got, want)


def kernels(call) -> set[str]:
    """The names of the kernels that call() launches."""
    with torch_anymps.profile() as profile:
        call()
    return {k.name for k in profile.kernels}


def spoil_memory() -> None:
    """Leaves NaN in the memory that the next small tensors get."""
    torch.full((1 << 16,), float("nan"), device=DEVICE)
    torch.full((1 << 8,), float("nan"), device=DEVICE)


def layouts(shape, dtype=torch.float32):
    """Random tensors of one shape: contiguous, with an offset, transposed in memory, expanded along the first."""
    yield torch.randn(shape).to(dtype)
    yield torch.randn((shape[0] + 2, *shape[1:])).to(dtype)[1:-1]
    yield torch.randn(shape[::-1]).to(dtype).permute(*reversed(range(len(shape))))
    yield torch.randn((1, *shape[1:])).to(dtype).expand(shape)
