"""Memory bandwidth of bandwidth-bound operators, in GB/s (bytes that must be read and written, over the time)."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def measure(device):
    import torch

    sizes = [int(s) for s in os.environ.get("ANYMPS_BENCHMARK_MIB", "64 256 1024" if device != "cpu" else "64").split()]
    figures = {}
    for mib in sizes:
        n = mib * 2**20 // 4
        side = int(n**0.5) // 64 * 64
        x, y = torch.randn(n, device=device), torch.randn(n, device=device)
        out = torch.empty_like(x)
        half = torch.empty(n, dtype=torch.float16, device=device)
        square = torch.randn(side, side, device=device)
        square_out = torch.empty_like(square)
        rows = torch.randn(n // 1024, 1024, device=device)
        norm = torch.nn.LayerNorm(1024).to(device)
        calls = {
            "add": (lambda: torch.add(x, y, out=out), 12 * n),
            "copy dense": (lambda: out.copy_(x), 8 * n),
            "copy transposed": (lambda: square_out.copy_(square.t()), 8 * side * side),
            "cast f32 to f16": (lambda: half.copy_(x), 6 * n),
            "sum": (lambda: x.sum(), 4 * n),
            "sum rows": (lambda: rows.sum(1), 4 * n),
            "sum columns": (lambda: rows.sum(0), 4 * n),
            "softmax": (lambda: torch.softmax(rows, -1), 8 * n),
            "layer_norm": (lambda: norm(rows), 8 * n),
        }
        with torch.no_grad():
            for name, (call, size) in calls.items():
                inner = 20 if device != "cpu" else 2
                figures[f"{name}, {mib} MiB"] = size / peer.median_seconds(call, device, inner=inner) / 1e9
    return figures


if __name__ == "__main__":
    peer.run(measure, "GB/s", "Bandwidth", higher_is_better=True)
