"""Expanded tensors, all of whose elements lie at one address: the gradient of a sum is one, and so may inputs be.

Every operator of op_db on mps against itself with dense tensors of the same values. NaN lie behind the one element.
"""

from __future__ import annotations

import pytest
import torch
from op_db_compare import map_tensors, tensors_in
from op_db_support import DEVICE, OPS, UNINITIALIZED, chosen_samples

SAMPLES = 2
# What lacks an operator, or makes float64; test_op_db.py knows which.
ERRORS = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError)
OF_FLOATS = [name for name, op in OPS.items() if torch.float32 in op.dtypes]


def expanded(shape, value=1.0):
    memory = torch.full((64,), float("nan"), device=DEVICE)
    memory[0] = value
    return memory[0].expand(shape)


def gradients_of(results, leaves, cotangents):
    return torch.autograd.grad(results, leaves, cotangents, allow_unused=True, retain_graph=True)


def assert_same(actual, expected):
    for got, want in zip(actual, expected, strict=True):
        if got is not None and want is not None:
            torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4, equal_nan=True)


def call(op, sample, change):
    arguments = map_tensors((sample.input, sample.args, sample.kwargs), change)
    return arguments, op(arguments[0], *arguments[1], **arguments[2])


@pytest.mark.parametrize("name", OF_FLOATS)
def test_gradients_of_sums(name, mps):
    op = OPS[name]
    if op.name in UNINITIALIZED or not op.supports_autograd:
        return
    for sample in chosen_samples(op, SAMPLES, torch.float32):
        try:
            arguments, result = call(op, sample, lambda t: t.detach().to(DEVICE).requires_grad_(t.requires_grad))
        except ERRORS:
            return
        results = [t for t in tensors_in(result) if t.requires_grad and t.dtype == torch.float32 and t.numel() > 1]
        leaves = [t for t in tensors_in(arguments) if t.requires_grad]
        if not results or not leaves:
            continue
        ones = [expanded(t.shape) for t in results]
        try:
            expected = gradients_of(results, leaves, [t.contiguous() for t in ones])
        except ERRORS:
            return
        assert_same(gradients_of(results, leaves, ones), expected)


# Of elements that are all alike, results are ties, or undefined; or the operator reads the memory behind them.
TIES = (
    "as_strided",
    "sparse",
    "jiterator",
    "sort",
    "topk",
    "unique",
    "mode",
    "median",
    "multinomial",
    "svd",
    "eig",
    "lobpcg",
    "pinv",
    "lstsq",
)


@pytest.mark.parametrize("name", OF_FLOATS)
def test_inputs(name, mps):
    op = OPS[name]
    if op.name in UNINITIALIZED or any(tie in op.name for tie in TIES):
        return
    for sample in chosen_samples(op, SAMPLES, torch.float32, requires_grad=False):

        def change(t, dense):
            on_device = t.detach().to(DEVICE)
            if t.dtype != torch.float32 or t.numel() < 2:
                return on_device
            one = expanded(t.shape, t.flatten()[0].item())
            return one.contiguous() if dense else one

        try:
            with torch.no_grad():
                results = [tensors_in(call(op, sample, lambda t, d=d: change(t, d))[1]) for d in (True, True, False)]
        except ERRORS:
            continue
        first, again, actual = results
        floats = [i for i, t in enumerate(first) if t.dtype == torch.float32]
        if all(torch.equal(first[i].nan_to_num(), again[i].nan_to_num()) for i in floats):  # no random numbers
            assert_same([actual[i] for i in floats], [first[i] for i in floats])
