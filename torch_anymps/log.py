"""ANYMPS_LOG: what is reported to stderr. When the process ends:

fallbacks   operators that ran on the CPU because they have no kernel: calls, seconds
slow        what the host waited for, operators whose core is LAPACK on the CPU, memory that ran short

At once, by csrc/runtime/plan_log.h:

plan        how products, convolutions and the like are computed: each distinct plan once
dispatch    every dispatch: kernel, specialization constants, grid, bytes of arguments
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


REPORTS = {"fallbacks": fallbacks, "slow": slow}
AT_ONCE = ("plan", "dispatch")


def _rows(op: str) -> list[tuple[str, int, float]]:
    import torch

    return list(zip(*getattr(torch.ops.anymps, op)(), strict=True))


def _host_times() -> list[tuple[str, int, float]]:
    return _rows("host_times")


def _line(what: str, calls: int, seconds: float) -> str:
    return f"{what}: {calls} {'call' if calls == 1 else 'calls'}, {seconds:.3f} s"
