"""What torch.profiler costs a training step on mps, and what part of that is the device's.

    python benchmarks/runtime/profiler_overhead.py [--network NAME ...] [--steps 5] [--trace FILE]

For each network of benchmarks/models/networks.py, and "small", which the host bounds: the seconds of a step without a
profiler, with PyTorch's profiler and no times of the device, and with both as users get it; the last as a percentage of
the first. The time of stop(), which reads the times and builds the trace, is not a part of a step. --trace writes the
last network's trace.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models")]
import peer  # noqa: E402
from networks import training_step  # noqa: E402


def small_step():
    """A step that is bound by the host: 24 layers of 64 features, AdamW."""
    import torch

    torch.manual_seed(0)
    layers = [m for _ in range(24) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to("mps")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    x = torch.randn(32, 64, device="mps")

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def seconds_a_step(step, steps: int, mode: str | None, trace: str | None = None) -> float:
    """mode: of the device's part ("on", "off"), or None for no profiler at all."""
    import torch
    from torch.profiler import profile

    def run() -> float:
        torch.mps.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.mps.synchronize()
        return (time.perf_counter() - begin) / steps

    if mode is None:
        return run()
    torch.ops.anymps.set_trace_mode(mode)
    try:
        with profile() as profiler:
            seconds = run()
        if trace:
            profiler.export_chrome_trace(trace)
        return seconds
    finally:
        torch.ops.anymps.set_trace_mode("on")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--network", nargs="+", default=["small", "ResNet50", "BERT-base"])
    arguments.add_argument("--steps", type=int, default=5)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--trace")
    options = arguments.parse_args()
    print(f"{'network':20} {'off, ms':>9} {'PyTorch, ms':>12} {'with mps, ms':>13} {'cost':>7}")
    for name in options.network:
        step = small_step() if name == "small" else training_step(name, "mps", amp=False)
        peer.median_seconds(step, "mps", repeats=1)
        modes = (None, "off", "on")
        # Alternating, so that a clock that drifts touches all of them.
        times = [[seconds_a_step(step, options.steps, mode) for mode in modes] for _ in range(options.repeats)]
        off, host, both = (min(column) for column in zip(*times, strict=True))
        print(f"{name:20} {off * 1e3:9.2f} {host * 1e3:12.2f} {both * 1e3:13.2f} {both / off - 1:7.1%}")
    if options.trace:
        seconds_a_step(step, options.steps, "on", options.trace)
        print(f"trace: {options.trace}")


if __name__ == "__main__":
    main()
