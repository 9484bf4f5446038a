"""PyTorch's own operator samples (op_db) on mps beside the CPU: what tests of operators share.

A sample is copied to the device with its strides and storage offset. The CPU's answer, forward and gradient, is the
expected one; where its kernels round after every step, or add up thousands of numbers one by one, the answer in the
next wider type. `run_op` says how one operator came out: the first of the OUTCOMES that any of its samples had.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from unittest import mock

import torch
from op_db_compare import (
    DEFAULT,
    STATISTICS_IN_SINGLE,
    difference,
    elements_named,
    errors_are_alike,
    map_tensors,
    tensors_in,
    tolerances,
)
from torch.testing._internal import common_utils

common_utils.MACOS_VERSION = 26.0  # common_mps reads it while it is imported
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402
from torch.testing._internal.opinfo.core import OpInfo  # noqa: E402

# For each sample it looks for a unittest.TestCase in all frames, and for their sources: 50 ms, and there is none here.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

DEVICE = torch.device("mps")
OUTCOMES = ("wrong", "error", "unimplemented", "pass")
UNSUPPORTED_DTYPES = ("float64", "ComplexDouble", "complex128", "Double")


def full_name(op) -> str:
    return op.name if not op.variant_test_name else f"{op.name}-{op.variant_test_name}"


OPS = {full_name(op): op for op in op_db}
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# Nobody promises what these leave in memory; types and shapes are compared.
UNINITIALIZED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_",
}  # fmt: skip
# Two draws may agree by chance. test_unpool.py gives the windows, test_generator.py compares integers' bits.
DRAWN = {"nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "randint", "randint_like"}
INDICES_STAY_ON_CPU = {"tensor_split"}  # by its own contract, on every device


@dataclass
class Report:
    """What became of the samples of one operator in one phase (forward or backward)."""

    counts: Counter = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)  # the first of each outcome

    def add(self, outcome: str, message: str = "") -> None:
        self.counts[outcome] += 1
        self.messages.setdefault(outcome, message)

    @property
    def outcome(self) -> str:
        """The worst outcome; "none" where no sample could be compared."""
        return next((name for name in OUTCOMES if self.counts[name]), "none")


def copied(tensor: torch.Tensor, device: torch.device, storages: dict | None = None) -> torch.Tensor:
    """A leaf of the same values, sizes, strides and storage offset on a device.

    storages: those already copied, for tensors that share one.
    """
    source = tensor.detach()
    if source.is_meta:
        return tensor
    if source.layout != torch.strided:
        result = source.to(device) if device.type != "cpu" else source.clone()
    else:
        conjugated, negated = source.is_conj(), source.is_neg()
        if conjugated:
            source = source.conj()
        if negated:
            source = torch._neg_view(source)
        items = source.untyped_storage().nbytes() // source.element_size()
        storages = {} if storages is None else storages
        key = (source.untyped_storage().data_ptr(), source.dtype)
        storage = storages.get(key) if items > 0 else None
        if storage is None:
            storage = torch.empty((items,), dtype=source.dtype, device=device)
            storage.copy_(source.as_strided((items,), (1,), 0))
            storages[key] = storage
        result = storage.as_strided(source.size(), source.stride(), source.storage_offset())
        result = torch._neg_view(result) if negated else result
        result = result.conj() if conjugated else result
    return result.detach().requires_grad_(tensor.requires_grad)


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor with what lies around it: nothing but the tensor may have changed."""
    items = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((items,), (1,), 0)


@dataclass
class Call:
    """The arguments of one sample on one device."""

    input: object
    args: tuple
    kwargs: dict

    @classmethod
    def of(cls, op, sample, device: torch.device) -> Call:
        call = (sample.input, tuple(sample.args), dict(sample.kwargs))
        stays = op.name in INDICES_STAY_ON_CPU
        storages: dict = {}
        moved = map_tensors(call, lambda t: t if stays and t.dtype == torch.int64 else copied(t, device, storages))
        kwargs = {k: device if k == "device" and v is not None else v for k, v in moved[2].items()}
        return cls(moved[0], moved[1], kwargs)

    @classmethod
    def in_wider_type(cls, sample) -> Call | None:
        """The same on the CPU in the next wider floating type; None where no argument has or names one."""
        call = (sample.input, tuple(sample.args), dict(sample.kwargs))
        named = [v for v in sample.kwargs.values() if isinstance(v, torch.dtype)]
        if not any(dtype in WIDER for dtype in [*named, *(t.dtype for t in tensors_in(call))]):
            return None

        def wider(t: torch.Tensor) -> torch.Tensor:
            return t.detach().to(WIDER.get(t.dtype, t.dtype)).requires_grad_(t.requires_grad)

        moved = map_tensors(call, wider)
        types = {k: WIDER.get(v, v) if isinstance(v, torch.dtype) else v for k, v in moved[2].items()}
        return cls(moved[0], moved[1], types)

    def run(self, op, sample):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = op(self.input, *self.args, **self.kwargs)
        if isinstance(op, OpInfo):
            result = elements_named(op.name, result, self.input, self.args, self.kwargs)
        return sample.output_process_fn_grad(result)

    def leaves(self) -> list[torch.Tensor]:
        return [t for t in tensors_in((self.input, self.args, self.kwargs)) if t.requires_grad]


def cotangents(result) -> list[torch.Tensor]:
    """Fixed random numbers for every output that has a gradient, on the CPU."""
    generator = torch.Generator().manual_seed(7)
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    kinds = [torch.complex64 if t.is_complex() else torch.float32 for t in outputs]
    return [torch.randn(t.shape, generator=generator, dtype=k).to(t.dtype) for t, k in zip(outputs, kinds)]


def gradients(result, leaves: list[torch.Tensor], given: list[torch.Tensor]):
    """Gradients of the leaves for cotangents of all outputs (by autograd.grad: samples share leaves)."""
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    if not outputs or not leaves:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [c.to(t.device, t.dtype) for c, t in zip(given, outputs, strict=True)]
        return torch.autograd.grad(outputs, leaves, given, allow_unused=True)


def chosen_samples(op, limit: int | None, dtype: torch.dtype, requires_grad: bool = True):
    """Samples of an operator, spread evenly over its list; None takes all. The seed is fixed."""
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    if limit is None or len(samples) <= limit:
        return samples
    return [samples[i * len(samples) // limit] for i in range(limit)]


def run_op(
    op, dtype: torch.dtype, limit: int | None, with_gradient: bool = True, tolerance: float | None = None
) -> dict[str, Report]:
    """Forward and gradient of an operator's samples on the device against the CPU.

    tolerance: relative and absolute, in place of those of op_db_compare.
    """
    reports = {"forward": Report(), "gradient": Report()}
    with_gradient &= op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for sample in chosen_samples(op, limit, dtype, requires_grad=dtype.is_floating_point or dtype.is_complex):
        compare(op, sample, dtype, reports, with_gradient, tolerance)
    return reports


def compare(op, sample, dtype, reports: dict[str, Report], with_gradient: bool, tolerance: float | None = None) -> None:
    """Adds to the reports "forward" and "gradient" what one sample gives on the device beside the CPU."""
    allowed = tolerances(op, dtype) if tolerance is None else dict.fromkeys(DEFAULT, (tolerance, tolerance))
    _Comparison(op, sample, allowed).run(reports, with_gradient)


class _Comparison:
    """One sample on the device and on the CPU."""

    def __init__(self, op, sample, allowed: dict[torch.dtype, tuple[float, float]]):
        self.op, self.sample, self.allowed = op, sample, allowed
        self.cotangents: list[torch.Tensor] = []

    def run(self, reports: dict[str, Report], with_gradient: bool) -> None:
        cpu, on_cpu = self._try(reports["forward"], "cpu_error", lambda: self._call(torch.device("cpu")))
        if cpu is None:  # a sample that the CPU itself cannot run says nothing
            return
        device, on_device = self._try(reports["forward"], None, lambda: self._call(DEVICE))
        if device is None:
            return
        self._report(reports["forward"], on_device, on_cpu, gradient=False)
        if not with_gradient:
            return
        self.cotangents = cotangents(on_cpu)
        report = reports["gradient"]
        expected = self._try(report, "cpu_error", lambda: (gradients(on_cpu, cpu.leaves(), self.cotangents),))
        if expected[0] is None:
            return
        actual = self._try(report, None, lambda: (gradients(on_device, device.leaves(), self.cotangents) or (),))
        if actual[0] is not None:
            self._report(report, actual[0], expected[0], gradient=True)

    def _call(self, device: torch.device | None):
        """The arguments on a device and what the operator makes of them; device None: the CPU, in a wider type."""
        call = Call.of(self.op, self.sample, device) if device is not None else Call.in_wider_type(self.sample)
        torch.manual_seed(1)
        return (call, call.run(self.op, self.sample)) if call is not None else (None, None)

    def _try(self, report: Report, outcome: str | None, function):
        try:
            result = function()
            if outcome is None:
                torch.mps.synchronize()
            return result
        except Exception as error:  # noqa: BLE001 - every failure is a finding
            report.add(outcome or _classify(error), self._describe(f"{type(error).__name__}: {str(error)[:300]}"))
            return None, None

    def _report(self, report: Report, actual, expected, gradient: bool) -> None:
        values = self.op.name not in UNINITIALIZED
        problem = self._problem(actual, expected, values, gradient)
        if problem and values and self._problem(actual, expected, False, gradient) is None:
            if self._agrees_with_wider_type(actual, expected, gradient):
                problem = None
            elif self.op.name in DRAWN or self._depends_on_seed(expected, gradient):
                report.add("random")
                return
        report.add("wrong" if problem else "pass", self._describe(problem or ""))

    def _problem(self, actual, expected, values: bool, gradient: bool, types: bool = True) -> str | None:
        if gradient:
            if len(actual) != len(expected):
                return "no gradient"
            # A gradient that the CPU leaves undefined may be zeros.
            pairs = [(a, e) for a, e in zip(actual, expected) if e is not None]
            if any(a is None for a, _ in pairs):
                return "no gradient"
            actual, expected = [a for a, _ in pairs], [e for _, e in pairs]
        single = not gradient and self.op.name in STATISTICS_IN_SINGLE
        return difference(actual, expected, self.allowed, values, types, single)

    def _again(self, device: torch.device | None, gradient: bool):
        call, result = self._call(device)
        if call is not None and gradient:
            result = gradients(result, call.leaves(), self.cotangents)
        return result

    def _agrees_with_wider_type(self, actual, expected, gradient: bool) -> bool:
        try:
            wider = self._again(None, gradient)
            if wider is None:
                return False
            if self._problem(actual, wider, True, gradient, types=False) is None:
                return True
            return errors_are_alike(tensors_in(actual), tensors_in(expected), tensors_in(wider))
        except Exception:  # noqa: BLE001 - not every operator has the wider type
            return False

    def _depends_on_seed(self, expected, gradient: bool) -> bool:
        # Some samples seed the generator themselves.
        with mock.patch("torch.manual_seed", lambda seed: torch.random.default_generator.manual_seed(seed + 1)):
            again = self._again(torch.device("cpu"), gradient)
        return again is not None and self._problem(again, expected, True, gradient) is not None

    def _describe(self, message: str) -> str:
        return f"{message}\n  sample: {self.sample.summary()[:500]}"


def _classify(error: Exception) -> str:
    if isinstance(error, TypeError) and any(name in str(error) for name in UNSUPPORTED_DTYPES):
        return "double"  # the sample asks for a dtype that the device does not have: its TypeError is the right answer
    return "unimplemented" if isinstance(error, NotImplementedError) else "error"
