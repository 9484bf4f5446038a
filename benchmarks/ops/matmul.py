"""Matrix products and convolutions on mps beside the CPU in one run: times and the ratio (above 1: mps is faster)."""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F


def seconds(function, device: str, least: float) -> float:
    """The best mean time of three rounds of at least `least` seconds each, after a warm-up."""
    synchronize = torch.mps.synchronize if device == "mps" else lambda: None
    function()
    synchronize()
    best, count = float("inf"), 1
    for _ in range(3):
        while True:
            start = time.perf_counter()
            for _ in range(count):
                function()
            synchronize()
            elapsed = time.perf_counter() - start
            if elapsed >= least:
                break
            count *= 2
        best = min(best, elapsed / count)
    return best


def cases(size: int, dtype: torch.dtype):
    """Name, operations, and a function from a device to the work to be timed."""

    def tensors(device, *shapes):
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]

    def product(name, a, b, call, operations):
        def prepare(device):
            x, y = tensors(device, a, b)
            return lambda: call(x, y)

        return name, operations, prepare

    n, batch, channels, side = size, 8, max(16, size // 8), max(8, size // 16)
    image, weight = (batch, channels, side, side), (channels, channels, 3, 3)
    conv = 2 * batch * side**2 * channels**2 * 9
    yield product(f"mm {n}", (n, n), (n, n), torch.mm, 2 * n**3)
    yield product(f"mm {n} transposed", (n, n), (n, n), lambda x, y: x @ y.t(), 2 * n**3)
    yield product(f"mm {n - 1}", (n - 1, n - 1), (n - 1, n - 1), torch.mm, 2 * (n - 1) ** 3)
    yield product(f"linear 1 x {n}", (1, n), (n, n), F.linear, 2 * n**2)
    yield product(f"bmm 12 x {n // 4}", (12, n // 4, n // 4), (12, n // 4, n // 4), torch.bmm, 24 * (n // 4) ** 3)
    yield product(f"conv2d {channels} channels, {side} px", image, weight, lambda x, w: F.conv2d(x, w, padding=1), conv)
    for name, mask in (("input", [True, False, False]), ("weight", [False, True, False])):

        def prepare(device, mask=mask):
            x, w, g = tensors(device, image, weight, image)
            arguments = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
            return lambda: torch.ops.aten.convolution_backward(g, x, w, *arguments)

        yield f"conv2d gradient of the {name}", conv, prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="side of the square products")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=0.1, help="least time of a round")
    options = parser.parse_args()
    print(f"{'':36}{'mps ms':>10}{'GFLOP/s':>10}{'cpu ms':>10}{'ratio':>8}")
    for name, operations, prepare in cases(options.size, getattr(torch, options.dtype)):
        mps, cpu = (seconds(prepare(device), device, options.seconds) for device in ("mps", "cpu"))
        print(f"{name:36}{mps * 1e3:10.3f}{operations / mps / 1e9:10.1f}{cpu * 1e3:10.3f}{cpu / mps:8.3f}")


if __name__ == "__main__":
    main()
