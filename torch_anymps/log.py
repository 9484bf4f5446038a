"""ANYMPS_LOG: what is reported to stderr. When the process ends:

fallbacks     operators that ran on the CPU because they have no kernel: calls, seconds
slow          what the host waited for, operators whose core is LAPACK on the CPU, memory that ran short
slow_kernels  kernels that took more than three times what their bytes or operations need on this device

At once, by csrc/runtime/plan_log.h:

plan          how products, convolutions and the like are computed: each distinct plan once
dispatch      every dispatch: kernel, specialization constants, grid, bytes of arguments
"""

from __future__ import annotations

import atexit
import os
import sys


def install() -> None:
    """Registers the reports that ANYMPS_LOG asks for, with commas between them."""
    words = [word.strip() for word in os.environ.get("ANYMPS_LOG", "").split(",")]
    words = [word for word in words if word and word not in AT_ONCE]
    if words:
        atexit.register(_print, words)
    if "slow_kernels" in words:
        _start_profile()


def _print(words: list[str]) -> None:
    for word in words:
        known = ", ".join([*REPORTS, *AT_ONCE])
        lines = REPORTS[word]() if word in REPORTS else [f"no report of this name; there are {known}"]
        for line in lines:
            print(f"ANYMPS_LOG {word}: {line}", file=sys.stderr)


def fallbacks() -> list[str]:
    """A line an operator that ran on the CPU because it has no kernel, most seconds first."""
    import torch_anymps

    missing = torch_anymps.fallbacks()
    times = [(seconds, name, calls) for name, calls, seconds in _host_times() if name in missing]
    return [
        _line(f"{name} ran on the CPU", calls, seconds) for seconds, name, calls in sorted(times, reverse=True)
    ] or ["every operator ran on the device"]


def slow() -> list[str]:
    """A line a cause for which the host waited, most seconds first."""
    import torch

    import torch_anymps

    missing = torch_anymps.fallbacks()
    causes = [(f"the host waited for {what}", calls, seconds) for what, calls, seconds in _rows("wait_counts")]
    causes += [
        (f"{name} ran LAPACK on the CPU", n, seconds) for name, n, seconds in _host_times() if name not in missing
    ]
    lines = [_line(*cause) for cause in sorted(causes, key=lambda cause: -cause[2]) if cause[1]]
    stats = torch.accelerator.memory_stats()
    if stats.get("num_alloc_retries"):
        lines.append(
            f"memory ran short {stats['num_alloc_retries']} times: the cache was emptied, the device waited for"
        )
    return lines or ["nothing was waited for"]


_profile = None  # of the whole process, or the error of starting it


def _start_profile() -> None:
    global _profile
    from torch_anymps import profiler

    try:
        _profile = profiler.Profile().__enter__()
    except RuntimeError as error:  # no device, or one without timestamps
        _profile = error


def slow_kernels(limit: int = 20) -> list[str]:
    """A line a kernel and its sizes, that which could save most seconds first; then what the bounds were made of."""
    from torch_anymps import device_rates

    if isinstance(_profile, RuntimeError):
        return [str(_profile)]
    try:
        _profile.__exit__(None, None, None)
    except RuntimeError as error:  # of the device, which ended the process
        return [str(error)]
    rates = device_rates.planned()
    over = _profile.slow(rates=rates)
    lines = [
        f"{k.name}, {k.shape}: {ratio:.1f} times its bound, {_spent(k.calls, k.seconds)}, "
        f"{k.bytes_per_second / 1e9:.3g} GB/s, {k.operations_per_second / 1e9:.3g} GFLOP/s"
        for k, ratio in over[:limit]
    ]
    spent = sum(k.seconds for k, _ in over)
    total = f"{spent:.3f} of {_profile.seconds:.3f} s on the device in {len(over)} such kernels"
    del rates["units"]  # which no bound is made of
    return [*lines, f"{total}, by {device_rates.words(rates)}"]


REPORTS = {"fallbacks": fallbacks, "slow": slow, "slow_kernels": slow_kernels}
AT_ONCE = ("plan", "dispatch")


def _rows(op: str) -> list[tuple[str, int, float]]:
    import torch

    return list(zip(*getattr(torch.ops.anymps, op)(), strict=True))


def _host_times() -> list[tuple[str, int, float]]:
    return _rows("host_times")


def _line(what: str, calls: int, seconds: float) -> str:
    return f"{what}: {_spent(calls, seconds)}"


def _spent(calls: int, seconds: float) -> str:
    return f"{calls} {'call' if calls == 1 else 'calls'}, {seconds:.3f} s"
