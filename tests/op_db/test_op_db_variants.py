"""Operators of op_db with out=, in place and as methods: on mps as on the CPU, in float32.

The memory of out= holds NaN before, and lies with strides in a larger storage: elements that are left out show, and so
does what is written beside them.
"""

from __future__ import annotations

import pytest
import torch
from op_db_compare import map_tensors, tensors_in
from op_db_support import OPS, UNINITIALIZED, Report, chosen_samples, compare, whole_storage
from test_op_db import exceptions

SAMPLES = 2
# What a variant does differently by design, and why; an entry that agrees is a failure.
DIFFERENT = {
    ("narrow_copy", "strided out"): "the CPU writes beside the strides of out",
    ("nn.functional.avg_pool3d", "strided out"): "the CPU writes beside the strides of out",
}


class Variant:
    """Another way to call an operator."""

    def __init__(self, op, call):
        self.op, self.name, self.call = op, op.name, call

    def __call__(self, *args, **kwargs):
        return self.call(self.op, *args, **kwargs)

    def get_decorators(self, *arguments):
        return self.op.get_decorators(*arguments)


def poisoned(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape that skips every other element of its memory, which holds NaN (or 77)."""
    value = float("nan") if like.is_floating_point() or like.is_complex() else like.dtype != torch.bool and 77
    return torch.full((2 * like.numel() + 1,), value, dtype=like.dtype, device=like.device)[1::2].view(like.shape)


def into(op, outs, *args, **kwargs):
    """The tensors of out=, and whether they are what the call returned."""
    returned = op(*args, **kwargs, out=outs)
    pairs = zip(tensors_in(returned), tensors_in(outs), strict=True)
    return tensors_in(outs), [float(r is o) for r, o in pairs]


def strided_out(op, *args, **kwargs):
    with torch.no_grad():
        outs, same = into(op, map_tensors(op(*args, **kwargs), poisoned), *args, **kwargs)
        return [whole_storage(t) for t in outs], same


def resized_out(op, *args, **kwargs):
    with torch.no_grad():
        return into(op, map_tensors(op(*args, **kwargs), lambda t: t.new_empty(0)), *args, **kwargs)


def in_place(op, x, *args, **kwargs):
    with torch.no_grad():
        return whole_storage(op.inplace_variant(poisoned(x).copy_(x), *args, **kwargs))


def method(op, x, *args, **kwargs):
    return op.method_variant(x, *args, **kwargs)


VARIANTS = {
    "strided out": (strided_out, lambda op: op.supports_out),
    "resized out": (resized_out, lambda op: op.supports_out),
    "in place": (in_place, lambda op: op.inplace_variant is not None),
    "method": (method, lambda op: op.method_variant is not None),
}
CASES = [
    (name, variant)
    for name, op in OPS.items()
    for variant, (_, exists) in VARIANTS.items()
    if op.supports_dtype(torch.float32, "cpu") and exists(op) and op.name not in UNINITIALIZED
]


@pytest.mark.usefixtures("all_bits_of_f32", "poisoned_memory")
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_variant(name, variant, mps):
    if (name, "float32", "forward") in exceptions():
        pytest.skip("op_db_exceptions.yaml has the operator")
    op = OPS[name]
    report = {"forward": Report(), "gradient": Report()}
    for sample in chosen_samples(op, SAMPLES, torch.float32, requires_grad=False):
        if variant == "in place" and (sample.broadcasts_input or not isinstance(sample.input, torch.Tensor)):
            continue
        compare(Variant(op, VARIANTS[variant][0]), sample, torch.float32, report, with_gradient=False)
    forward = report["forward"]
    fails = forward.outcome not in ("pass", "none")
    reason = DIFFERENT.get((name, variant))
    assert fails or reason is None, f"agrees now: take it out ({reason})"
    assert not fails or reason, f"{forward.outcome}: {forward.messages[forward.outcome]}"
