"""Rates of this device, for the cost model of products and convolutions: `python -m torch_anymps.tune --device`.

They are stored in the cache folder for this device and driver, and later processes plan with them. The row that is
printed is one for csrc/vulkan/device_profile.cpp.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

SECONDS = 0.2  # that one measurement should take at least
MAX_SIDE = 4096  # of square products
MAX_COPY = 1 << 28  # bytes


def measure() -> dict[str, float]:
    """Rates by the names of csrc/vulkan/device_profile.h: DeviceRates. SI units; 0 is what the device has not."""
    import torch

    info = json.loads(torch.ops.anymps.device_info())
    features = info["features"]
    rates = {"launch": launch_seconds(), "bytes": bytes_per_second()}
    rates["simt_f32"] = _simt_rate() if features["coopmat"] else product_rate(torch.float32)
    rates["matrix_f16"] = product_rate(torch.float16) if features["coopmat"] else 0.0
    rates["matrix_bf16"] = product_rate(torch.bfloat16) if features["bf16 coopmat"] else 0.0
    rates["units"] = info["planned_compute_units"]
    return rates


def launch_seconds(kernels: int = 64) -> float:
    """Seconds between two kernels of which one reads what the other writes: replayed, so that the host is no part."""
    import torch

    x = torch.zeros(1, device="mps")
    graph = torch.accelerator.Graph()
    x.add_(1)
    torch.mps.synchronize()
    with graph:
        for _ in range(kernels):
            x.add_(1)
    return seconds_of(graph.replay) / kernels


def bytes_per_second() -> float:
    """Of a copy within the device's memory: bytes read and bytes written."""
    import torch

    size = min(MAX_COPY, torch.mps.recommended_max_memory() // 16)
    while True:
        x = torch.zeros(size // 4, device="mps")
        y = torch.empty_like(x)
        seconds = seconds_of(lambda: y.copy_(x))  # noqa: B023
        if seconds < SECONDS or size <= 1 << 20:
            return 2 * x.nbytes / seconds
        size //= 4


def product_rate(dtype) -> float:
    """FLOP/s of a square product, the best of growing sides until one takes long."""
    import torch

    best, side = 0.0, 256
    while side <= MAX_SIDE:
        a, b = (torch.ones(side, side, dtype=dtype, device="mps") for _ in range(2))
        seconds = seconds_of(lambda: a @ b)  # noqa: B023
        best = max(best, 2 * side**3 / seconds)
        if seconds > SECONDS / 8:
            break
        side *= 2
    return best


def seconds_of(call: Callable[[], object], least: float = SECONDS) -> float:
    """Of one call, by the host's clock over as many as take `least` seconds; the first ones are left out (the driver
    compiles, clocks rise)."""
    import torch

    def run(calls: int) -> float:
        torch.mps.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.mps.synchronize()
        return time.perf_counter() - start

    run(1)
    once = run(1)
    calls = min(1 << 14, int(least / max(once, 1e-5)))
    return min(run(calls) for _ in range(2)) / calls if calls > 1 else once


def _simt_rate() -> float:
    """The f32 rate without matrix units, in a process that leaves them unused."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, torch_anymps.device_rates as d; print(d.product_rate(torch.float32))"],
        env=os.environ | {"ANYMPS_CAPS": "no-matrices"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def planned() -> dict[str, float]:
    """The rates that plans are made by, under the same names: the family's until they have been measured."""
    from torch_anymps import info

    text = info.device_info()["profile"]["rates"]
    return {name: float(value) for name, _, value in (word.partition("=") for word in text.split())}


def words(rates: dict[str, float]) -> str:
    """As the file has them and torch.ops.anymps.device_row takes them."""
    return " ".join(f"{name}={value:.4g}" for name, value in rates.items())


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    """Replaces a file at once: other processes see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(path)


def main() -> int:
    """Measures, stores and prints."""
    import torch

    rates = measure()
    name, header = torch.ops.anymps.device_rates_file()
    write_lines(pathlib.Path(name), [header, words(rates)])
    print(torch.ops.anymps.device_row(words(rates)))
    print(f"stored in {name}")
    return 0
