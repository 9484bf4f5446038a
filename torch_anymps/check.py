"""`python -m torch_anymps.check`: at most two minutes on any GPU, and a report to be pasted into an issue.

    python -m torch_anymps.check [--seconds 120]

Compares 40 operators in three types and a training step with the CPU, measures bandwidth and the rate of products, and
names the longest dispatch. The exit code is 0 where everything agreed, and 1 otherwise or without a device.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch_anymps.device_rates import seconds_of

# The largest difference from the CPU, which computes in float32, as a part of the largest value of the result.
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
STEPS = 3  # of training
STEP_TOLERANCE = 1e-3  # of weights after them, as above
MEASURED = 0.3  # seconds, of each figure
LARGEST_COPY = 256 << 20  # bytes
GRACE = 10.0  # seconds that the last part may take beyond the end


@dataclass
class Check:
    """What is left of the time, and what went wrong so far."""

    end: float
    failures: list[str] = field(default_factory=list)
    part: str = "the start"
    kernels: list = field(default_factory=list)  # torch_anymps.profiler.Kernel, of all parts under profiled()
    large: list[Callable[[], object]] = field(default_factory=list)  # the largest calls of the measurements

    def left(self) -> float:
        return self.end - time.monotonic()

    def row(self, label: str, value: str) -> None:
        print(f"{label + ':':<22}{value}", flush=True)

    def run(self, label: str, part: Callable[[Check], str]) -> None:
        """Prints one row of the report. An exception of the device is a failure, and the next part is tried."""
        self.part = label
        if self.left() <= 0:
            return self.row(label, "not reached: the time was over")
        try:
            value = part(self)
        except Exception as error:
            value = _words(error)
            self.failures.append(f"{label}: {value}")
        self.row(label, value)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def difference(ours, theirs) -> float:
    """The largest, as a part of the largest value; infinite where either is not finite, or shapes differ."""
    ours, theirs = ours.detach().cpu().float(), theirs.detach().float()
    if ours.shape != theirs.shape or not (ours.isfinite().all() and theirs.isfinite().all()):
        return float("inf")
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)).item()


def _inputs(dtype):
    """The same numbers on every machine, exact in all three types."""
    import torch

    def values(rows: int, columns: int, salt: int):
        i = torch.arange(rows * columns, dtype=torch.int64)
        return (((i * 40503 + salt * 7919) % 65521 % 251 - 125) / 64).to(dtype).view(rows, columns)

    order = torch.arange(64) * 37 % 64
    return values(64, 96, 1), values(64, 96, 2), values(96, 48, 3) / 4, order


def operators(check: Check, name: str) -> str:
    """All operators in one type. What fails is named in the report and in check.failures."""
    import torch
    import torch.nn.functional as f

    from torch_anymps import check_operators

    dtype = getattr(torch, name)
    worst, worst_name, failed, done = 0.0, "", [], 0
    arguments = _inputs(dtype)
    on_device = [t.to("mps") for t in arguments]
    in_float32 = [t.float() if t.is_floating_point() else t for t in arguments]
    for case in check_operators.cases():
        if case.only_float32 and dtype != torch.float32:
            continue
        if check.left() <= 0:
            return f"stopped after {done} operators: the time was over"
        check.part = f"{case.name} in {name}"
        try:
            found = difference(case.run(*on_device, f), case.run(*in_float32, f))
            wrong = "" if found <= TOLERANCES[name] else f"differs by {found:.1e}"
        except Exception as error:
            found, wrong = 0.0, _words(error)
        if wrong:
            failed.append(f"{case.name} {wrong}")
        elif found > worst:
            worst, worst_name = found, case.name
        done += 1
    if failed:
        check.failures.append(f"{len(failed)} operators in {name}")
        return f"{len(failed)} of {done} FAILED: {'; '.join(failed)}"
    return f"{done} agree with the CPU, the worst by {worst:.1e} ({worst_name})"


def training_step(check: Check) -> str:
    """Steps of a small network with convolutions, attention and norms, by SGD with momentum."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    x, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    twin = copy.deepcopy(net).to("mps")
    losses = {}
    for device, model in (("cpu", net), ("mps", twin)):
        step = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(STEPS):
            step.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), labels.to(device))
            loss.backward()
            step.step()
        losses[device] = loss.item()
    pairs = zip(twin.parameters(), net.parameters(), strict=True)
    worst = max(difference(ours, theirs) for ours, theirs in pairs)
    text = f"{STEPS} steps, weights differ from the CPU's by {worst:.1e}, the loss by "
    text += f"{abs(losses['mps'] - losses['cpu']):.1e}"
    if not worst <= STEP_TOLERANCE:
        check.failures.append("a training step")
        text = "FAILED: " + text
    return text


def bandwidth(check: Check) -> str:
    import torch

    from torch_anymps import info

    most = 16 << 20 if info.device_info()["kind"] == "software" else LARGEST_COPY
    size = max(1 << 20, min(most, torch.mps.recommended_max_memory() // 16)) // 4
    x = torch.ones(size, device="mps")
    y = torch.empty_like(x)
    host = torch.ones(min(size, 4 << 20))
    copy_rate = 2 * x.nbytes / seconds_of(lambda: torch.add(x, 1, out=y), MEASURED / 2)
    up = host.nbytes / seconds_of(lambda: x[: host.numel()].copy_(host), MEASURED / 2)
    down = host.nbytes / seconds_of(lambda: x[: host.numel()].cpu(), MEASURED / 2)
    check.large.append(lambda: torch.add(x, 1, out=y))
    return (
        f"{copy_rate / 1e9:.1f} GB/s in memory of the device ({x.nbytes >> 20} MiB read and written), "
        f"{up / 1e9:.2f} GB/s from the host, {down / 1e9:.2f} GB/s to it"
    )


def matrix_rate(check: Check) -> str:
    """Products of the largest size that takes less than a tenth of a second."""
    import torch

    rates = []
    for name in TOLERANCES:
        size, seconds = 128, 0.0
        while True:
            x = torch.ones(size, size, device="mps", dtype=getattr(torch, name))
            seconds = seconds_of(lambda x=x: x @ x, MEASURED / 8)
            if size >= 4096 or seconds > 0.02 or check.left() < 10:
                break
            size *= 2
        check.large.append(lambda x=x: x @ x)
        rates.append(f"{name} {2e-9 * size**3 / seconds:.0f} GFLOP/s ({size})")
    return ", ".join(rates)


def small_calls(check: Check) -> str:
    import torch

    x = torch.ones(16, device="mps")
    add, sync = seconds_of(lambda: x + 1, MEASURED / 2), seconds_of(lambda: (x + 1).cpu(), MEASURED / 2)
    return f"{add * 1e6:.1f} us an add of 16 numbers, {sync * 1e6:.0f} us with its copy to the host"


def profiled(part: Callable[[Check], str]) -> Callable[[Check], str]:
    """The part with the times of its dispatches taken, where the driver has timestamps."""

    def run(check: Check) -> str:
        import torch_anymps

        profile = torch_anymps.profile()
        try:
            profile.__enter__()
        except RuntimeError:
            return part(check)
        try:
            return part(check)
        finally:
            profile.__exit__(None, None, None)
            check.kernels += profile.kernels

    return run


def longest_dispatch(check: Check) -> str:
    """Of all parts under profiled(), and of the largest calls once more."""

    def again(check: Check) -> str:
        for call in check.large:
            call()
        return ""

    profiled(again)(check)
    if not check.kernels:
        return "not known: the driver has no timestamps"
    longest = max(check.kernels, key=lambda k: k.seconds / k.calls)
    return (
        f"{longest.seconds / longest.calls * 1e3:.3f} ms, {longest.name} over {longest.shape}; of "
        f"{sum(k.calls for k in check.kernels)} dispatches"
    )


def _header(check: Check) -> None:
    from torch_anymps import info

    print(info.versions())
    for label, value in info.device_rows():
        check.row(label, value)


def _stop_at_the_end(check: Check) -> threading.Timer:
    """A driver that hangs must not take the report with it."""

    def stop() -> None:
        print(f"\nFAILED: {check.part} did not end in time", flush=True)
        os._exit(1)

    timer = threading.Timer(check.left() + GRACE, stop)
    timer.daemon = True
    timer.start()
    return timer


def main(arguments: list[str] | None = None) -> int:
    """Prints the report. Returns 0 where everything agrees, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m torch_anymps.check", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=110, help="after which no further part begins (110)")
    check = Check(time.monotonic() + parser.parse_args(arguments).seconds)
    import torch

    import torch_anymps
    from torch_anymps import info

    if not torch.backends.mps.is_available():
        return info.main() or 1
    timer = _stop_at_the_end(check)
    _header(check)
    for name in TOLERANCES:
        check.run(f"operators, {name}", profiled(functools.partial(operators, name=name)))
    check.run("training", profiled(training_step))
    check.run("memory", bandwidth)
    check.run("products", matrix_rate)
    check.run("small calls", small_calls)
    check.run("longest dispatch", longest_dispatch)
    fallbacks = torch_anymps.fallbacks()
    if fallbacks:
        check.row("on the CPU", ", ".join(fallbacks))
    timer.cancel()
    print("\nall checks passed" if not check.failures else f"\nFAILED: {'; '.join(check.failures)}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
