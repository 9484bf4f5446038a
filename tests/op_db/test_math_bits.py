"""Conjugate and negative views of complex tensors: every operator of op_db that takes them, forward, backward and in
place, beside the CPU. PyTorch resolves the bits with copies that come back to the device."""

from __future__ import annotations

import itertools

import pytest
import torch
from op_db_compare import map_tensors
from op_db_support import OPS, UNINITIALIZED, Report, chosen_samples, compare
from test_op_db import exceptions
from test_op_db_variants import Variant
from torch.testing._internal.opinfo.core import SampleInput

NAMES = [
    name
    for name, op in OPS.items()
    if op.supports_dtype(torch.complex64, "cpu") and op.test_conjugated_samples and op.name not in UNINITIALIZED
    if not name.startswith("sparse.")  # whose samples have no strides
]


def viewed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a view with both bits."""
    if not tensor.is_complex():
        return tensor
    with torch.no_grad():
        stored = -tensor.conj_physical()
    return torch._neg_view(stored).conj().detach().requires_grad_(tensor.requires_grad)


def sample_of(x, args, kwargs, like: SampleInput) -> SampleInput:
    process, broadcasts = like.output_process_fn_grad, like.broadcasts_input
    return SampleInput(x, args=args, kwargs=kwargs, output_process_fn_grad=process, broadcasts_input=broadcasts)


def in_place(op, x, *args, **kwargs):
    with torch.no_grad():
        result = op.inplace_variant(viewed(x.resolve_conj().resolve_neg()), *args, **kwargs)
    return result, torch.tensor([result.is_conj(), result.is_neg()])


@pytest.mark.parametrize("name", NAMES)
def test_views_with_both_bits(name, mps, all_bits_of_f32):
    op = OPS[name]
    sample = chosen_samples(op, 1, torch.complex64)[0]
    reports = {"forward": Report(), "gradient": Report()}
    with_gradient = op.supports_autograd and torch.complex64 in op.supported_backward_dtypes("cpu")
    arguments = (map_tensors(part, viewed) for part in (sample.input, sample.args, sample.kwargs))
    sample = sample_of(*arguments, sample)
    compare(op, sample, torch.complex64, reports, with_gradient)
    if op.inplace_variant is not None and isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
        compare(Variant(op, in_place), sample, torch.complex64, reports, with_gradient=False)
    for phase, report in reports.items():
        fails = report.outcome not in ("pass", "none")
        excused = (name, "complex64", phase) in exceptions()
        assert not fails or excused, f"{phase}, {report.outcome}: {report.messages[report.outcome]}"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex32, torch.float32])
def test_copies_between_views(dtype, mps):
    """Every pair of bits, with the destination's own memory seen through them."""
    plain = torch.tensor([1 + 2j, -3 + 0.5j, 0 - 4j]).to(dtype) if dtype.is_complex else torch.tensor([1.0, -2.0, 0.0])
    bits = [lambda t: t]
    if dtype.is_complex:
        bits.append(torch.conj)
    if dtype != torch.complex32:  # which the CPU has no negation for
        bits += [lambda t, bit=bit: torch._neg_view(bit(t)) for bit in bits]
    for to, of in itertools.product(bits, bits):
        results = []
        for device in ("cpu", "mps"):
            target = torch.zeros(3, dtype=dtype, device=device)
            to(target).copy_(of(plain.to(device)))
            results.append(target.cpu())
        parts = [torch.view_as_real(t) if dtype.is_complex else t for t in results]
        assert torch.equal(parts[1], parts[0])
