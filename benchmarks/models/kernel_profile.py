"""The most expensive kernels of training steps of the chart's networks, with their fraction of the bound that applies.

The bound of a kernel is the longer of two times: its bytes at the speed of a dense copy on this device, measured here,
and its floating-point operations at the device's peak by the data sheet. Arguments: names of networks; default: the
chart's three. `--save` writes the table into benchmarks/results. ANYMPS_PROFILE_LINES (10) is the number of kernels,
ANYMPS_PROFILE_PRECISIONS ("fp32 AMP") which steps.
"""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
import results  # noqa: E402
from networks import training_step  # noqa: E402

STEPS = 3
COLUMNS = ["calls", "ms a step", "share", "of its bound"]
LISTED = int(os.environ.get("ANYMPS_PROFILE_LINES", "10"))
CHART = ("ResNet50", "BERT-base", "VGG16")

# TFLOP/s of dense products by the data sheets: 16 bits on matrix units, 32 bits on lanes.
PEAKS = {"H200": (989, 67), "H100": (989, 67), "A100": (312, 19.5)}


def peak(kernel: str, device_name: str) -> float:
    """Operations a second that bound a kernel of this name; 0 where the device is not known."""
    matrix, lanes = next((p for name, p in PEAKS.items() if name in device_name), (0, 0))
    parts = re.search(r"_(bf16x[123]|f16x[12])$", kernel)
    if parts:  # f32 cut into parts of 16 bits, bf16 or halves: that many products each
        return matrix * 1e12 / {"bf16x1": 1, "bf16x2": 3, "bf16x3": 6, "f16x1": 1, "f16x2": 3}[parts[1]]
    return (matrix if kernel.endswith(("f16", "bf16")) else lanes) * 1e12


def copy_bandwidth() -> float:
    """Bytes a second that a dense copy of 1 GiB (256 MiB on software drivers) reads and writes."""
    import torch

    source = torch.ones(2**28 if torch.mps.recommended_max_memory() > 2**34 else 2**22, device="mps")
    target = torch.empty_like(source)
    return 2 * source.nbytes / peer.median_seconds(lambda: target.copy_(source), "mps", inner=10)


def report(title: str, step, bandwidth: float, device_name: str) -> dict[str, list]:
    """Prints both tables of a step, and returns rows of a result file: COLUMNS, of the kernel of all sizes."""
    import torch

    import torch_anymps

    first = peer.median_seconds(step, "mps", repeats=1, warmup=0)
    step()
    wall = peer.median_seconds(step, "mps", repeats=5, warmup=0)
    with torch_anymps.profile() as profile:
        for _ in range(STEPS):
            step()
    print(
        f"\n{title}: {wall * 1e3:.1f} ms a step, {profile.seconds / STEPS * 1e3:.1f} ms in kernels, "
        f"{first:.1f} s the first step, "
        f"{torch.mps.driver_allocated_memory() / 2**30:.1f} GiB"
    )
    print(
        "| kernel, sizes | calls | ms a step | share | GB/s | TFLOP/s | of its bound |\n|---|---|---|---|---|---|---|"
    )
    for k in profile.kernels[:LISTED]:
        print(
            f"| {k.name}, {k.shape} | {k.calls // STEPS} | {k.seconds / STEPS * 1e3:.2f} "
            f"| {k.seconds / profile.seconds:.1%} | {k.bytes_per_second / 1e9:.0f} "
            f"| {k.operations_per_second / 1e12:.1f} | {fraction(k, bandwidth, device_name):.2f} |"
        )
    by_name = {}
    for k in profile.kernels:
        ideal, seconds, calls = by_name.get(k.name, (0.0, 0.0, 0))
        by_name[k.name] = (
            ideal + k.seconds * fraction(k, bandwidth, device_name),
            seconds + k.seconds,
            calls + k.calls,
        )
    print("\n| kernel, all sizes | calls | ms a step | share | of its bound |\n|---|---|---|---|---|")
    rows = {f"{title}: whole step": [None, wall * 1e3, None, None]}
    for name, (ideal, seconds, calls) in sorted(by_name.items(), key=lambda item: -item[1][1])[:LISTED]:
        ms, share = seconds / STEPS * 1e3, seconds / profile.seconds
        rows[f"{title}: {name}"] = [calls // STEPS, ms, share, ideal / seconds]
        print(
            f"| {name} | {calls // STEPS} | {ms:.2f} | {share:.1%} | {ideal / seconds:.2f} |",
            flush=True,
        )
    return rows


def fraction(kernel, bandwidth: float, device_name: str) -> float:
    most = peak(kernel.name, device_name)
    bounds = [kernel.bytes / bandwidth, kernel.operations / most if most else 0.0]
    return kernel.calls * max(bounds) / (kernel.seconds or 1.0)


def report_all(title: str, steps) -> None:
    """Prints the tables of pairs (title, function that makes a step); each step is let go of before the next is made.

    `--save` among the arguments writes them into the result file `title`.
    """
    import torch

    device_name, bandwidth = peer.device_name("mps"), copy_bandwidth()
    print(f"{device_name}; dense copy: {bandwidth / 1e9:.0f} GB/s")
    rows = {}
    for what, make in steps:
        step = make()
        rows |= report(what, step, bandwidth, device_name)
        del step
        torch.mps.empty_cache()
    if "--save" in sys.argv:
        results.save(results.device_facts("mps"), None, title, COLUMNS, rows)


def named(default) -> list[str]:
    """The networks that the arguments name."""
    return [word for word in sys.argv[1:] if word != "--save"] or list(default)


def main() -> None:
    precisions = os.environ.get("ANYMPS_PROFILE_PRECISIONS", "fp32 AMP").split()
    steps = [
        (f"{name}, train, {precision}", lambda name=name, amp=precision == "AMP": training_step(name, "mps", amp))
        for name in named(CHART)
        for precision in precisions
    ]
    report_all("The most expensive kernels of training steps", steps)


if __name__ == "__main__":
    main()
