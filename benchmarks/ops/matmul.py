"""Matrix products, convolutions and their gradients, and attention, in TFLOP/s.

ANYMPS_BENCHMARK_SIZE is the side of the square products (4096, on the CPU 512); the other sizes follow it.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def products(make, n):
    """Name -> call, floating-point operations."""
    import torch
    import torch.nn.functional as F

    a, b, odd = make(n, n), make(n, n), make(n - 1, n - 1)
    tokens, wide = make(2 * n, 768), make(3072, 768)
    gradient = make(2 * n, 3072)
    batch = make(12, n // 4, n // 4)
    return {
        f"mm {n}": (lambda: torch.mm(a, b), 2 * n**3),
        f"linear {n}": (lambda: F.linear(a, b), 2 * n**3),
        f"mm {n - 1}": (lambda: torch.mm(odd, odd), 2 * (n - 1) ** 3),
        f"linear {2 * n} x 768 -> 3072": (lambda: F.linear(tokens, wide), 4 * n * 768 * 3072),
        "  gradient of the input": (lambda: gradient @ wide, 4 * n * 768 * 3072),
        "  gradient of the weight": (lambda: gradient.t() @ tokens, 4 * n * 768 * 3072),
        f"bmm 12 x {n // 4}": (lambda: torch.bmm(batch, batch), 24 * (n // 4) ** 3),
        f"linear 1 x {n}": (lambda: F.linear(a[:1], b), 2 * n**2),
    }


def convolutions(make, n, images):
    """Layers of ResNet50: name -> call, floating-point operations."""
    import torch

    calls = {}
    for channels, filters, side, taps in ((64, 64, 56, 3), (256, 256, 14, 3), (64, 256, 56, 1), (1024, 256, 14, 1)):
        x, w, g = (
            make(images, channels, side, side),
            make(filters, channels, taps, taps),
            make(images, filters, side, side),
        )
        padding = taps // 2
        operations = 2 * images * side**2 * channels * filters * taps**2
        name = f"conv {channels} -> {filters}, {side} px, {taps} x {taps}"
        calls[name] = (lambda x=x, w=w, p=padding: torch.conv2d(x, w, padding=p), operations)
        for what, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
            arguments = (g, x, w, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1, mask)
            calls[f"{name}, gradient of the {what}"] = (
                lambda arguments=arguments: torch.ops.aten.convolution_backward(*arguments),
                operations,
            )
    return calls


def measure(device):
    import torch
    import torch.nn.functional as F

    small = device == "cpu" or (device == "mps" and "llvmpipe" in peer.device_name(device))
    n = int(os.environ.get("ANYMPS_BENCHMARK_SIZE", 512 if small else 4096))
    figures = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):

        def make(*shape, dtype=dtype):
            return torch.randn(shape, device=device).to(dtype)

        q = make(2 if small else 8, 4 if small else 16, n, 64)
        calls = products(make, n) | convolutions(make, n, max(1, n // 64))
        calls[f"attention {tuple(q.shape)}"] = (
            lambda q=q: F.scaled_dot_product_attention(q, q, q),
            4 * q.shape[0] * q.shape[1] * n * n * 64,
        )
        with torch.no_grad():
            for name, (call, operations) in calls.items():
                seconds = peer.median_seconds(call, device, inner=2 if small else 10, repeats=3 if small else 7)
                figures[f"{str(dtype).split('.')[1]}: {name.strip()}"] = operations / seconds / 1e12
    return figures


if __name__ == "__main__":
    peer.run(measure, "TFLOP/s", "Products, convolutions, attention", higher_is_better=True)
