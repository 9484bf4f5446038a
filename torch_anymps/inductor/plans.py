"""mode="max-autotune": plans of products and convolutions (tile, split-K) as choices that Inductor measures.

A choice is PyTorch's operator while this thread wants a plan, and is named for both:
`mm_matrix_64x64x64_m64_split2`. Others of the same operator and sizes, outside of the compiled function, are not
affected. Where a size is dynamic and another product results, for which a plan is none, the model plans as always.
"""

from __future__ import annotations

import re

import torch
from torch._inductor import config
from torch._inductor.runtime import benchmarking
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelCaller,
    ExternKernelChoice,
    add_preprocessing_fn,
    extern_kernels,
)
from torch._inductor.virtualized import V

from .device import device_config

# Operators by Inductor's names for them.
OPERATORS = ("mm", "mm_dtype", "addmm", "bias_addmm", "bmm", "bmm_dtype", "baddbmm", "convolution")
# KERNEL:M:SWAPPED:SPLIT_K[:TAIL_SPLIT], as csrc/gemm/tuning.cpp writes it.
_PLAN = re.compile(r"(?P<kernel>\w+):(?P<m>\d+):(?P<swapped>[01]):(?P<split>\d+)(?::(?P<tail>\d+))?")
_NAME = re.compile(
    rf"(?P<operator>{'|'.join(sorted(OPERATORS, key=len, reverse=True))})_(?P<kernel>\w+)_m(?P<m>\d+)"
    r"(?P<swapped>_swapped)?_split(?P<split>\d+)(?:_tail(?P<tail>\d+))?"
)
# Measured: milliseconds and calls.
_MAX_MILLISECONDS, _MAX_CALLS, _ROUNDS = 20.0, 100, 3
_MUST_WIN_BY = 1.03  # two measurements of one plan differ by up to 2 %


def name_of(operator: str, plan: str) -> str:
    """Name of a choice. Raises ValueError for what is no plan."""
    match = _PLAN.fullmatch(plan)
    if match is None:
        raise ValueError(f"{plan!r} is no plan of a product")
    swapped = "_swapped" if match["swapped"] == "1" else ""
    tail = f"_tail{match['tail']}" if match["tail"] else ""
    return f"{operator}_{match['kernel']}_m{match['m']}{swapped}_split{match['split']}{tail}"


def operator_and_plan(name: str) -> tuple[str, str]:
    """Of a choice's name. Raises ValueError for what is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} names no operator and plan")
    numbers = [match["m"], "1" if match["swapped"] else "0", match["split"], *filter(None, [match["tail"]])]
    return match["operator"], ":".join([match["kernel"], *numbers])


class _Planned:
    """Functions by the names of choices, as attributes: what generated modules call."""

    def __getattr__(self, name: str):
        try:
            operator, plan = operator_and_plan(name)
        except ValueError as error:
            raise AttributeError(str(error)) from None
        function, want = getattr(extern_kernels, operator), torch.ops.anymps.want_plan.default
        number = torch.ops.anymps.plan_number(plan)

        def call(*args, **kwargs):
            want(number)
            try:
                return function(*args, **kwargs)
            finally:
                want(0)

        setattr(self, name, call)
        return call


planned = _Planned()


class PlannedCaller(ExternKernelCaller):
    """A call with a plan: taken where it beats the operator, whose call costs the host less, by more than noise."""

    def benchmark(self, *args, out):
        return super().benchmark(*args, out=out) * _MUST_WIN_BY


class PlannedChoice(ExternKernelChoice):
    """An operator with a plan. Modules of other processes find it by its name, so the name says all."""

    def bind(self, input_nodes, layout, ordered_kwargs_for_cpp_kernel=(), **kwargs) -> PlannedCaller:
        self.ordered_kwargs_for_cpp_kernel = ordered_kwargs_for_cpp_kernel
        return PlannedCaller(self, input_nodes, layout, kwargs, has_out_variant=self.has_out_variant)

    def call_name(self) -> str:
        return f"mps_planned.{self.name}"

    def hash_key(self) -> str:
        """Part of the keys of Inductor's cache of times, which has no device but CUDA's in them."""
        return f"{self.name} {device_config()!r}"


def _choice(base: ExternKernelChoice, plan: str) -> PlannedChoice:
    name = name_of(base.name, plan)
    known = ExternKernelChoice.lookup(name)
    return known or PlannedChoice(
        getattr(planned, name), name=name, has_out_variant=base.has_out_variant, op_overload=base.op_overload
    )


def is_of_mps(choice) -> bool:
    return choice.layout is not None and choice.layout.device.type == "mps"


def add_plans(choices: list) -> list:
    """Inductor's choices for an operator, and the same with each plan that it could take."""
    if not (config.max_autotune or config.max_autotune_gemm) or V.graph.cpp_wrapper:
        return choices
    added = []
    for caller in choices:
        is_ours = isinstance(caller, ExternKernelCaller) and is_of_mps(caller)
        if not is_ours or caller.choice.name not in OPERATORS:
            continue
        cpp_arguments = getattr(caller.choice, "ordered_kwargs_for_cpp_kernel", ())
        added += [
            _choice(caller.choice, plan).bind(caller.input_nodes, caller.layout, cpp_arguments, **caller.kwargs)
            for plan in _plans_of(caller)
        ]
    return [*choices, *added]


def _plans_of(caller: ExternKernelCaller) -> list[str]:
    """What a call with these sizes could take, [] where there is one plan only."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        made = AlgorithmSelectorCache.get_inputs([caller], caller.input_nodes, caller.layout, None).extern
        out = {"out": made.output_tensor} if caller.has_out_variant else {}
        plans = listed_plans(lambda: caller.to_callable()(*made.input_tensors, **out))
    return plans if len(plans) > 1 else []


def listed_plans(call) -> list[str]:
    """Texts of the plans that the products and convolutions of call() could take."""
    torch.ops.anymps.start_listing_plans()
    try:
        call()
    finally:
        plans = torch.ops.anymps.stop_listing_plans()
    return list(dict.fromkeys(plans))


def _milliseconds(_, call, *, rep: float = _MAX_MILLISECONDS, **__) -> float:
    """Of a call, by the device's clock: the least of a few rounds of calls that follow one another."""
    call()
    torch.mps.synchronize()  # until kernels have been compiled
    calls = min(max(int(min(rep, _MAX_MILLISECONDS) / _ROUNDS / max(_round(call, 1), 1e-3)), 1), _MAX_CALLS)
    return min(_round(call, calls) for _ in range(_ROUNDS))


def _round(call, calls: int) -> float:
    begin, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def _at_once(select):
    """Selection while an operator is lowered: later it would ask Triton what else it could fuse with it."""

    def __call__(self, name, choices, input_nodes, layout, *args, **kwargs):
        if "return_multi_template" in kwargs and any(is_of_mps(choice) for choice in choices):
            kwargs["return_multi_template"] = False
        return select(self, name, choices, input_nodes, layout, *args, **kwargs)

    return __call__


def _keeping_random_state(generate):
    """Random inputs of a measurement: the numbers that the user draws are the same with and without it."""

    def generate_example_value(size, stride, device, *args, **kwargs):
        if torch.device(device).type != "mps":
            return generate(size, stride, device, *args, **kwargs)
        state = torch.mps.get_rng_state()
        try:
            return generate(size, stride, device, *args, **kwargs)
        finally:
            torch.mps.set_rng_state(state)

    return generate_example_value


def install() -> None:
    """Makes plans choices of Inductor's, and mps a device whose times it can take."""
    add_preprocessing_fn(add_plans)
    AlgorithmSelectorCache.__call__ = _at_once(AlgorithmSelectorCache.__call__)
    benchmarking.register_benchmarker("mps", _milliseconds, override=True)
    generate = AlgorithmSelectorCache.generate_example_value
    AlgorithmSelectorCache.generate_example_value = staticmethod(_keeping_random_state(generate))
