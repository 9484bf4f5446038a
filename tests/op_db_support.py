"""PyTorch's own operator samples (op_db) on mps beside the CPU: what tests of operators share.

A sample is copied to the device with its strides and storage offset. The CPU's answer, forward and gradient, is the
expected one. `run_op` says how one operator came out: the first of the OUTCOMES that any of its samples had.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.testing._internal import common_utils

common_utils.MACOS_VERSION = 26.0  # common_mps reads it while it is imported
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

DEVICE = torch.device("mps")
OUTCOMES = ("wrong", "error", "unimplemented", "pass")
UNSUPPORTED_DTYPES = ("float64", "ComplexDouble", "complex128", "Double")


def full_name(op) -> str:
    return op.name if not op.variant_test_name else f"{op.name}-{op.variant_test_name}"


OPS = {full_name(op): op for op in op_db}
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


def map_tensors(value, function):
    """The same structure with every tensor replaced; tuples keep their type."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple):
        items = [map_tensors(v, function) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(v, function) for v in value]
    if isinstance(value, dict):
        return {k: map_tensors(v, function) for k, v in value.items()}
    return value


def tensors_in(value) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(value, lambda t: found.append(t) or t)
    return found


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

    def run(self, op, sample):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sample.output_process_fn_grad(op(self.input, *self.args, **self.kwargs))

    def leaves(self) -> list[torch.Tensor]:
        return [t for t in tensors_in((self.input, self.args, self.kwargs)) if t.requires_grad]


def gradients(result, leaves: list[torch.Tensor]):
    """Gradients of the leaves for fixed cotangents of all outputs (by autograd.grad: samples share leaves)."""
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    if not outputs or not leaves:
        return None
    generator = torch.Generator().manual_seed(7)
    cotangents = [torch.randn(t.shape, generator=generator).to(t.dtype).to(t.device) for t in outputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)


def difference(actual, expected, tolerance: float, values: bool = True) -> str | None:
    """A sentence where two results differ; None where they agree. `values` False compares types and shapes only."""
    got, want = tensors_in(actual), tensors_in(expected)
    if len(got) != len(want):
        return f"{len(got)} tensors where the CPU gives {len(want)}"
    plain = not want and not isinstance(expected, (tuple, list))
    near = isinstance(expected, float) and math.isclose(actual, expected, rel_tol=tolerance)
    if plain and values and actual != expected and not near:
        return f"{actual} where the CPU gives {expected}"
    for a, e in zip(got, want):
        if a.dtype != e.dtype or a.shape != e.shape or a.layout != e.layout:
            return f"{a.dtype} {tuple(a.shape)} where the CPU gives {e.dtype} {tuple(e.shape)}"
        if values:
            try:
                torch.testing.assert_close(
                    a.detach().cpu(), e.detach(), rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
                )
            except AssertionError as error:
                return " ".join(str(error).split())[:300]
    return None


def chosen_dtype(op) -> torch.dtype:
    """float32, or the first of the dtypes that the operator has."""
    wanted = (torch.float32, torch.int64, torch.bool, torch.complex64)
    return next((dtype for dtype in wanted if op.supports_dtype(dtype, "cpu")), torch.float32)


def chosen_samples(op, limit: int | None, dtype: torch.dtype, requires_grad: bool = True):
    """Samples of an operator, spread evenly over its list; None takes all. The seed is fixed."""
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    if limit is None or len(samples) <= limit:
        return samples
    return [samples[i * len(samples) // limit] for i in range(limit)]


def _needs_double(error: Exception) -> bool:
    return isinstance(error, TypeError) and any(name in str(error) for name in UNSUPPORTED_DTYPES)


def _classify(error: Exception) -> str:
    if _needs_double(error):
        return "double"  # the sample asks for a dtype that the device does not have: its TypeError is the right answer
    return "unimplemented" if isinstance(error, NotImplementedError) and "MPS" in str(error) else "error"


def _describe(sample, message: str) -> str:
    return f"{message}\n  sample: {sample.summary()[:500]}"


def run_op(op, limit: int | None, tolerance: float, values: bool = True) -> dict[str, Report]:
    """Forward and backward of an operator's samples on the device against the CPU."""
    forward, backward = Report(), Report()
    dtype = chosen_dtype(op)
    with_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for sample in chosen_samples(op, limit, dtype, requires_grad=with_gradient):
        cpu = Call.of(op, sample, torch.device("cpu"))
        try:
            torch.manual_seed(1)
            expected = cpu.run(op, sample)
        except Exception:  # noqa: BLE001 - a sample that the CPU itself cannot run says nothing
            forward.add("cpu_error")
            continue
        try:
            device = Call.of(op, sample, DEVICE)
            torch.manual_seed(1)
            actual = device.run(op, sample)
            problem = difference(actual, expected, tolerance, values)
        except Exception as error:  # noqa: BLE001 - every failure is a finding
            forward.add(_classify(error), _describe(sample, f"{type(error).__name__}: {str(error)[:300]}"))
            continue
        forward.add("wrong" if problem else "pass", _describe(sample, problem or ""))
        if with_gradient:
            _run_backward(backward, sample, (expected, cpu), (actual, device), tolerance, values)
    return {"forward": forward, "backward": backward}


def _run_backward(report: Report, sample, on_cpu, on_device, tolerance: float, values: bool) -> None:
    try:
        expected = gradients(on_cpu[0], on_cpu[1].leaves())
    except Exception:  # noqa: BLE001 - as above
        report.add("cpu_error")
        return
    if expected is None:
        return
    try:
        actual = gradients(on_device[0], on_device[1].leaves())
        used = [(a, e) for a, e in zip(actual or (), expected) if e is not None]
        problem = (
            "no gradient"
            if actual is None or any(a is None for a, _ in used)
            else difference([a for a, _ in used], [e for _, e in used], tolerance, values)
        )
    except Exception as error:  # noqa: BLE001 - as above
        report.add(_classify(error), _describe(sample, f"{type(error).__name__}: {str(error)[:300]}"))
        return
    report.add("wrong" if problem else "pass", _describe(sample, problem or ""))
