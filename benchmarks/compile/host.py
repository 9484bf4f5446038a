"""Host cost of compiled code, in microseconds: of compiled functions, replayed ones and eager ones."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def measure(device):
    import torch
    from torch import nn

    x = torch.randn(64, 64, device=device)
    figures = {}

    def per_call(name, function, *inputs):
        torch._dynamo.reset()
        compiled, replayed = torch.compile(function), torch.compile(function, mode="reduce-overhead")
        with torch.no_grad():
            figures[f"{name}, replayed"] = 1e6 * peer.host_seconds(lambda: replayed(*inputs), device, 50)
            figures[f"{name}, compiled"] = 1e6 * peer.host_seconds(lambda: compiled(*inputs), device, 50)
            figures[f"{name}, eager"] = 1e6 * peer.host_seconds(lambda: function(*inputs), device, 50)

    def twenty(x):
        for _ in range(20):
            x = torch.softmax((x @ x) * 0.5, -1)
        return x

    per_call("x * 2 + 1", lambda x: x * 2 + 1, x)
    per_call("20 products and softmax", twenty, x)
    layers = [layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    per_call("10 x linear, gelu, layer_norm", nn.Sequential(*layers).to(device).eval(), x)
    return figures


if __name__ == "__main__":
    peer.run(measure, "us", "Host cost of compiled functions")
