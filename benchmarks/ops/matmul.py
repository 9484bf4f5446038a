"""Matrix products in TFLOP/s: squares, and the products of BERT-base and GPT 124M with 8,192 tokens.

A product of m x n results over k has 2 m n k operations. `nt` is `linear`; `nn` and `tn` are the
products of its gradients. "float32, high" is torch.set_float32_matmul_precision("high"). ANYMPS_BENCHMARK_SIZE is the
side of the smaller square (4096, on a CPU 512); the other sizes follow it.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def shapes(n):
    """(m, n, k, layouts) of every product."""
    tokens, width = 2 * n, 3 * n // 16
    return [
        (n, n, n, ("nt", "nn", "tn")),
        (2 * n, 2 * n, 2 * n, ("nt", "nn", "tn")),
        (n - 1, n - 1, n - 1, ("nn",)),
        (tokens, width, width, ("nt", "nn")),
        (tokens, 4 * width, width, ("nt", "nn")),
        (tokens, width, 4 * width, ("nt", "nn")),
        (width, width, tokens, ("tn",)),
        (4 * width, width, tokens, ("tn",)),
        (tokens, 50304 * n // 4096, width, ("nt",)),
        (1, n, n, ("nt",)),
    ]


def factors(layout, m, n, k, dtype, device):
    """Factors of m x k and k x n: n for a contiguous one, t for the transpose of a contiguous matrix."""
    import torch

    def matrix(rows, columns, across):
        shape = (columns, rows) if across else (rows, columns)
        values = torch.randn(shape, device=device).to(dtype)
        return values.t() if across else values

    return matrix(m, k, layout[0] == "t"), matrix(k, n, layout[1] == "t")


def measure(device):
    import torch

    small = device == "cpu" or (device == "mps" and "llvmpipe" in peer.device_name(device))
    n = int(os.environ.get("ANYMPS_BENCHMARK_SIZE", 512 if small else 4096))
    figures = {}
    for name, dtype, precision in (
        ("float16", torch.float16, "highest"),
        ("bfloat16", torch.bfloat16, "highest"),
        ("float32", torch.float32, "highest"),
        ("float32, high", torch.float32, "high"),
    ):
        torch.set_float32_matmul_precision(precision)
        for m, columns, k, layouts in shapes(n):
            operations = 2 * m * columns * k
            for layout in layouts:
                a, b = factors(layout, m, columns, k, dtype, device)
                call = lambda a=a, b=b: torch.mm(a, b)  # noqa: E731
                seconds = peer.median_seconds(call, device, peer.stream_length(call, device), 3, warmup=0)
                figures[f"{name}: {m} x {columns} x {k}, {layout}"] = operations / seconds / 1e12
    return figures


if __name__ == "__main__":
    peer.run(measure, "TFLOP/s", "Matrix products", higher_is_better=True)
