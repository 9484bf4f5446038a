"""Host cost of one eager operator, in microseconds."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def measure(device):
    import torch

    a, b = torch.randn(64, device=device), torch.randn(64, device=device)
    rows = torch.randn(8, 64, device=device)
    linear = torch.nn.Linear(64, 64).to(device)
    leaf = torch.randn(8, 64, device=device, requires_grad=True)

    def forward_backward():
        linear(leaf).sum().backward()
        linear.zero_grad(set_to_none=True)
        leaf.grad = None

    calls = {
        "empty": lambda: torch.empty(64, device=device),
        "add": lambda: a + b,
        "add_ (in place)": lambda: a.add_(b),
        "mul by a number": lambda: a * 2.0,
        "mm 64x64": lambda: torch.mm(linear.weight.detach(), linear.weight.detach()),
        "softmax": lambda: torch.softmax(rows, -1),
        "sum": lambda: rows.sum(-1),
        "linear forward": lambda: linear(rows),
        "linear forward+backward": forward_backward,
    }
    return {
        name: peer.host_seconds(call, device, inner=60 if "backward" in name else 200) * 1e6
        for name, call in calls.items()
    }


if __name__ == "__main__":
    peer.run(measure, "us", "Host cost of one eager operator")
