"""Bandwidth of kernels that torch.compile generates, beside a copy and beside eager code: GB/s of tensors of 256 MiB.

The peer is CUDA's Inductor (Triton) in the same run: ANYMPS_PEER_PYTHON.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def measure(device):
    import torch
    import torch.nn.functional as F

    small = "llvmpipe" in peer.device_name(device) or device == "cpu"
    rows, columns = (512 if small else 65536), 1024
    x, y = (torch.randn(rows, columns, device=device) for _ in range(2))
    w, b = (torch.randn(columns, device=device) for _ in range(2))
    h = x.bfloat16()
    whole = x.numel() * 4 / 1e9
    # name: function, how often the whole tensor is moved
    cases = {
        "gelu(x*w+b)+y": (lambda x, y, w, b, h: F.gelu(x * w + b) + y, 3),
        "x + y": (lambda x, y, w, b, h: x + y, 3),
        "bf16 x*2+1": (lambda x, y, w, b, h: h * 2 + 1, 1),
        "softmax(x+b)*2": (lambda x, y, w, b, h: torch.softmax(x + b, -1) * 2, 2),
        "silu(layer_norm(x))": (lambda x, y, w, b, h: F.silu(F.layer_norm(x, (columns,), w, b)), 2),
        "sum(x*y)": (lambda x, y, w, b, h: (x * y).sum(), 2),
        "sum of rows": (lambda x, y, w, b, h: (x * y).sum(1), 2),
        "sum of columns": (lambda x, y, w, b, h: (x * y).sum(0), 2),
        "transpose + 1": (lambda x, y, w, b, h: (x.t() + 1).contiguous(), 2),
        "dropout": (lambda x, y, w, b, h: F.dropout(x, 0.1), 2),
    }
    target = torch.empty_like(x)
    copy = lambda: target.copy_(x)  # noqa: E731
    figures = {"copy": 2 * whole / peer.median_seconds(copy, device, peer.stream_length(copy, device))}
    inputs = (x, y, w, b, h)
    for name, (function, passes) in cases.items():
        torch._dynamo.reset()
        compiled = torch.compile(function)
        for kind, call in (("compiled", compiled), ("eager", function)):
            run = lambda call=call: call(*inputs)  # noqa: E731
            seconds = peer.median_seconds(run, device, peer.stream_length(run, device))
            figures[f"{name}, {kind}"] = passes * whole / seconds
    return figures


if __name__ == "__main__":
    peer.run(measure, "GB/s", "Generated kernels", higher_is_better=True)
