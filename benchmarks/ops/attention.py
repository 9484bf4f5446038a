"""Attention of the published shapes, forward and backward, in TFLOP/s (of decoding: GB/s of keys and values).

Heads are transposed views of (batch, tokens, heads, size), as transformers makes them.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

# name: batch, heads, queries, keys, size, causal
SHAPES = {
    "long": (8, 16, 4096, 4096, 64, False),
    "long, causal": (8, 16, 4096, 4096, 64, True),
    "long, 128": (8, 8, 4096, 4096, 128, False),
    "BERT-base": (64, 12, 128, 128, 64, False),
    "GPT 124M": (8, 12, 1024, 1024, 64, True),
}
DECODING = {
    "decoding, 1,024 keys": (1, 12, 1, 1024, 64, False),
    "decoding, 8 x 8,192 keys": (8, 32, 1, 8192, 128, False),
}


def measure(device):
    import torch
    import torch.nn.functional as F

    small = device == "cpu" or (device == "mps" and "llvmpipe" in peer.device_name(device))
    figures = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        type_name = str(dtype).split(".")[1]

        def heads(batch, count, tokens, size, dtype=dtype):
            return torch.randn(batch, tokens, count, size, device=device).to(dtype).transpose(1, 2)

        for name, (batch, count, queries, keys, size, causal) in (SHAPES | DECODING).items():
            if small:
                batch, queries, keys = 1, min(queries, 256), min(keys, 256)
            q, k, v = (
                heads(batch, count, queries, size),
                heads(batch, count, keys, size),
                heads(batch, count, keys, size),
            )
            operations = 4 * batch * count * queries * keys * size / (2 if causal else 1) / 1e12
            call = lambda q=q, k=k, v=v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c)  # noqa: E731
            with torch.no_grad():
                seconds = peer.median_seconds(call, device, peer.stream_length(call, device), 3, warmup=0)
            if name in DECODING:
                moved = (k.numel() + v.numel()) * k.element_size() / 1e9
                figures[f"{type_name}: {name}, GB/s"] = moved / seconds
                continue
            figures[f"{type_name}: {name}, forward"] = operations / seconds
            leaves = [t.requires_grad_() for t in (q, k, v)]
            out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
            grad = torch.randn_like(out)
            call = lambda o=out, i=leaves, g=grad: torch.autograd.grad(o, i, g, retain_graph=True)  # noqa: E731
            seconds = peer.median_seconds(call, device, peer.stream_length(call, device), 3, warmup=0)
            figures[f"{type_name}: {name}, backward"] = 2.5 * operations / seconds
    return figures


if __name__ == "__main__":
    peer.run(measure, "TFLOP/s", "Attention", higher_is_better=True)
