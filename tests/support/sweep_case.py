"""One case of tests/op_db/test_sweep.py: an operator of op_db under one check, on mps beside the CPU."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator

import sweep_checks
import torch
from op_db_compare import tensors_in, tolerances
from op_db_support import DEVICE, OPS, Call, Report, chosen_samples, compare
from sweep_arguments import emptied, of_the_same_rank
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree as pytree

# The checks, each with the functions of sweep_checks.py that it compares.
CHECKS: dict[str, tuple[Callable, ...]] = {
    "empty": (sweep_checks.forward, sweep_checks.gradients),
    "vjp": (sweep_checks.vjp,),
    "jvp": (sweep_checks.jvp,),
    "vmap": (sweep_checks.vmap, sweep_checks.vmap_of_first),
    "vmap_vjp": (sweep_checks.vmap_of_vjp,),
    "trace": (sweep_checks.trace, sweep_checks.trace_of_gradient),
    "double_backward": (sweep_checks.double_backward,),
    "forward_mode": (sweep_checks.forward_mode,),
    "dispatch_mode": (sweep_checks.dispatch_mode,),
    "subclass": (sweep_checks.subclass,),
}
NAMING_OPERATORS = ("dispatch_mode", "subclass")
TRACED = ("trace", "trace_of_gradient")
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.float16, torch.bfloat16)  # the first that the CPU has
OUTCOMES = ("died", "timeout", "wrong", "error", "unimplemented", "operators", "pass")  # from the worst


def dtype_of(op) -> torch.dtype | None:
    return next((dtype for dtype in DTYPES if op.supports_dtype(dtype, "cpu")), None)


CASES = [(name, check) for name, op in OPS.items() if dtype_of(op) is not None for check in CHECKS]


class Checked:
    """An operator under a check, as an operator to compare; it says on which device it runs before it does."""

    def __init__(self, op, function: Callable, sample: SampleInput, says: Callable[[str], None]):
        self.op, self.name, self.function, self.sample, self.says = op, op.name, function, sample, says
        self.seen: dict[str, Counter[str]] = {}  # operators by device, where the check counts them
        self.takes_others: dict[str, bool] = {}  # whether a traced graph took other sizes, by device

    def get_decorators(self, *arguments):
        return self.op.get_decorators(*arguments)

    def __call__(self, *args, **kwargs):
        device = next((t.device.type for t in pytree.tree_leaves((args, kwargs)) if hasattr(t, "device")), "cpu")
        self.says(device)
        result = self.function(self._plain, *args, **kwargs)
        if self.function.__name__ in TRACED:
            return self._of_trace(*result, device)
        if self.function.__name__ in NAMING_OPERATORS:
            result, seen = result
            self.seen.setdefault(device, seen)  # the first run of a device: of the type that was asked for
        return result

    def _of_trace(self, own, others, device: str):
        """What of the results is compared: sizes that the CPU's graph does not take, mps may take."""
        self.takes_others.setdefault(device, others is not None)
        if not self.takes_others["cpu"]:
            return own
        assert others is not None, "the graph does not take sizes that the CPU's takes"
        return own, others

    def _plain(self, *args, **kwargs):
        return self.sample.output_process_fn_grad(self.op(*args, **kwargs))


def _compare(op, function: Callable, sample: SampleInput, dtype, says, report: Report) -> None:
    checked = Checked(op, function, sample, says)
    plain = SampleInput(sample.input, args=sample.args, kwargs=dict(sample.kwargs))
    if function.__name__ in TRACED:
        other = of_the_same_rank(op, sample)
        plain.kwargs["others"] = tensors_in((other.input, other.args, other.kwargs))
    # Derivatives along random directions are sums in another order; tests/op_db/test_op_db.py has the accuracy of each.
    tolerance = max(1e-4, *tolerances(op, dtype).get(dtype, (0.0, 0.0)))
    compare(checked, plain, dtype, {"forward": report, "gradient": Report()}, with_gradient=False, tolerance=tolerance)
    names = [checked.seen.get(device, Counter()) for device in ("cpu", "mps")]
    more = [Counter({k: v for k, v in (a - b).items()}) for a, b in (names, names[::-1])]
    if all(names) and any(more):
        text = [", ".join(f"{name} x{count}" for name, count in sorted(m.items())) or "none" for m in more]
        report.add("operators", f"only the CPU: {text[0]}; only mps: {text[1]}")


def _compare_empty(op, function: Callable, sample: SampleInput, dtype, says, report: Report) -> None:
    """As _compare; where the CPU's forward raises, mps must raise."""
    checked = Checked(op, function, sample, says)
    plain = SampleInput(sample.input, args=sample.args, kwargs=dict(sample.kwargs))
    if function is sweep_checks.forward:
        try:
            Call.of(op, plain, torch.device("cpu")).run(checked, plain)
        except Exception as error:  # noqa: BLE001 - of any kind
            report.add(*_refusal(checked, plain, error))
            return
    compare(checked, plain, dtype, {"forward": report, "gradient": Report()}, with_gradient=False)


def _refusal(checked: Checked, sample: SampleInput, expected: Exception) -> tuple[str, str]:
    """An outcome, and what is wrong: that nothing is raised, or that an error is of another kind."""
    text = f"the CPU raises {type(expected).__name__}: {str(expected)[:150]}\n  sample: {sample.summary()[:300]}"
    try:
        Call.of(checked.op, sample, DEVICE).run(checked, sample)
        torch.mps.synchronize()
    except Exception as error:  # noqa: BLE001 - of any kind
        alike = isinstance(error, (type(expected), torch.AcceleratorError)) or isinstance(expected, type(error))
        alike |= isinstance(error, TypeError) and "float64" in str(error)  # no such sample on mps, empty or not
        return ("pass", "") if alike else ("error", f"{type(error).__name__}: {str(error)[:150]}, where {text}")
    return "wrong", f"answers where {text}"


def _pieces(op, check: str, limit: int, dtype: torch.dtype) -> Iterator[Callable[[Callable, Report], None]]:
    """What is compared, one after the other."""
    for sample in chosen_samples(op, limit, dtype, requires_grad=dtype.is_floating_point or dtype.is_complex):
        comparison = _compare_empty if check == "empty" else _compare
        for form in emptied(sample) if check == "empty" else (sample,):
            for function in CHECKS[check]:
                yield functools.partial(comparison, op, function, form, dtype)


def run_case(name: str, check: str, limit: int, skip: set[int], says: Callable[[int, str], None]) -> Report:
    """Compares up to `limit` samples of an operator.

    skip: numbers of comparisons to leave out. says: told the number of a comparison and the device that it begins on.
    """
    op, report = OPS[name], Report()
    for number, piece in enumerate(_pieces(op, check, limit, dtype_of(op))):
        if number not in skip:
            piece(lambda device, number=number: says(number, device), report)
    return report
