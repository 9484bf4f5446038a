"""Recurrent layers: ms of a forward and a backward, and of a forward alone; of cuDNN where the peer is CUDA.

Sizes: PyTorch's word_language_model (650 units, batch 64, 70 steps) and a small one. A network's step has an embedding
and a decoder as well; here are the layers alone. On mps the dispatches of one time step stand beside them.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

SIZES = {"650 x 64 x 70": (650, 64, 70), "128 x 32 x 100": (128, 32, 100)}  # units x batch x steps


def modules(device):
    """Name, module, input and autocast's dtype."""
    import torch

    software = device == "cpu" or (device == "mps" and "llvmpipe" in peer.device_name(device))
    for size, (units, batch, steps) in SIZES.items():
        steps = steps // 10 if software else steps
        x = torch.randn(steps, batch, units, device=device)
        for kind in ("LSTM", "GRU"):
            for layers in (1, 2):
                torch.manual_seed(0)
                module = getattr(torch.nn, kind)(units, units, layers).to(device)
                for dtype in (None, torch.bfloat16):
                    name = f"{kind}, {layers} layer{'s'[: layers - 1]}, {size}, {'AMP bf16' if dtype else 'fp32'}"
                    yield name, module, x, dtype


def training_step(module, x, dtype):
    import torch

    x = x.detach().requires_grad_()

    def step():
        with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            out = module(x)[0]
        out.backward(out.detach())

    return step


def measure(device):
    import torch

    figures = {}
    for name, module, x, dtype in modules(device):
        step = training_step(module, x, dtype)
        figures[f"{name}, training"] = peer.median_seconds(step, device, peer.stream_length(step, device)) * 1e3

        def forward(module=module, x=x, dtype=dtype):
            with torch.no_grad(), torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
                module(x)

        seconds = peer.median_seconds(forward, device, peer.stream_length(forward, device))
        figures[f"{name}, inference"] = seconds * 1e3
    return figures


def dispatches_of_a_step():
    """Dispatches that one more time step takes, forward and backward, and the kernels of the largest case."""
    import torch_anymps

    for name, module, x, dtype in modules("mps"):
        counts = []
        for steps in (x.size(0) // 2, x.size(0) // 2 + 2):
            step = training_step(module, x[:steps], dtype)
            step()
            with torch_anymps.profile() as taken:
                step()
            counts.append(sum(kernel.calls for kernel in taken.kernels))
        print(f"{name}: {(counts[1] - counts[0]) / 2:g} dispatches a time step")
        if "--profile" in sys.argv:
            print(taken.table(12))


if __name__ == "__main__":
    if "--dispatches" in sys.argv or "--profile" in sys.argv:
        dispatches_of_a_step()
    else:
        peer.run(measure, "ms", "Recurrent layers")
