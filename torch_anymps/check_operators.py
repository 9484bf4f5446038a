"""The operators that `python -m torch_anymps.check` compares with the CPU: each family of kernels at least once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Case(NamedTuple):
    """One call. run(x, y, w, i, f): matrices of 64 x 96 of the type, w of 96 x 48, the permutation i of 64 rows, and
    torch.nn.functional; x lies between -2 and 2. Returns a tensor."""

    name: str
    run: Callable
    only_float32: bool = False  # where PyTorch has no kernel for halves


def cases() -> list[Case]:
    import torch

    def conv(x, w, f, transposed=False):
        image, kernel = x.view(4, 8, 12, 16), w.reshape(-1)[: 8 * 8 * 9].view(8, 8, 3, 3)
        return (f.conv_transpose2d if transposed else f.conv2d)(image, kernel, stride=1 + transposed, padding=1)

    def attention(x, y, f, causal):
        q, k = x.view(1, 4, 48, 32), y.view(1, 4, 48, 32)
        return f.scaled_dot_product_attention(q, k, q, is_causal=causal)

    def depthwise(x, w, f):
        return f.conv2d(x.view(4, 8, 12, 16), w.reshape(-1)[:72].view(8, 1, 3, 3), groups=8)

    return [
        Case("add, broadcast", lambda x, y, w, i, f: x + y[:1] * 0.5),
        Case("div", lambda x, y, w, i, f: x / (y.abs() + 1)),
        Case("exp", lambda x, y, w, i, f: x.exp()),
        Case("sin", lambda x, y, w, i, f: x.sin()),
        Case("pow", lambda x, y, w, i, f: x.abs() ** 1.5),
        Case("gelu", lambda x, y, w, i, f: f.gelu(x)),
        Case("silu", lambda x, y, w, i, f: f.silu(x)),
        Case("where", lambda x, y, w, i, f: torch.where(x > 0, x, y)),
        Case("clamp", lambda x, y, w, i, f: x.clamp(-0.5, 0.75)),
        Case("transposed copy", lambda x, y, w, i, f: x.t().contiguous()),
        Case("cast", lambda x, y, w, i, f: (x * 32).int().to(x.dtype)),
        Case("cat", lambda x, y, w, i, f: torch.cat([x, y[:, 5:]], 1)),
        Case("sum, rows", lambda x, y, w, i, f: x.sum(1)),
        Case("mean, columns", lambda x, y, w, i, f: x.mean(0)),
        Case("var, all", lambda x, y, w, i, f: x.var().view(1)),
        Case("amax", lambda x, y, w, i, f: x.amax(0)),
        Case("norm", lambda x, y, w, i, f: x.norm(dim=1)),
        Case("softmax", lambda x, y, w, i, f: x.softmax(1)),
        Case("log_softmax, columns", lambda x, y, w, i, f: x.log_softmax(0)),
        Case("layer_norm", lambda x, y, w, i, f: f.layer_norm(x, [96], y[0], y[1])),
        Case("group_norm", lambda x, y, w, i, f: f.group_norm(x.view(4, 8, 12, 16), 4)),
        Case("batch_norm", lambda x, y, w, i, f: f.batch_norm(x, None, None, training=True)),
        Case("mm", lambda x, y, w, i, f: x @ w),
        Case("addmm, transposed", lambda x, y, w, i, f: f.linear(x, w.t().contiguous(), y[0, :48])),
        Case("bmm", lambda x, y, w, i, f: x.view(4, 16, 96) @ y.view(4, 96, 16)),
        Case("matrix by vector", lambda x, y, w, i, f: x @ y[0]),
        Case("conv2d", lambda x, y, w, i, f: conv(x, w, f)),
        Case("conv2d, depthwise", lambda x, y, w, i, f: depthwise(x, w, f)),
        Case("conv_transpose2d", lambda x, y, w, i, f: conv(x, w, f, transposed=True)),
        Case("attention", lambda x, y, w, i, f: attention(x, y, f, causal=False)),
        Case("attention, causal", lambda x, y, w, i, f: attention(x, y, f, causal=True)),
        Case("max_pool2d", lambda x, y, w, i, f: f.max_pool2d(x.view(4, 8, 12, 16), 2)),
        Case("interpolate", lambda x, y, w, i, f: f.interpolate(x.view(4, 8, 12, 16), scale_factor=1.5,
                                                                mode="bilinear")),
        Case("embedding", lambda x, y, w, i, f: f.embedding(i, x)),
        Case("index_add", lambda x, y, w, i, f: x.index_add(0, i, y)),
        Case("gather", lambda x, y, w, i, f: x.gather(0, i[:, None].expand(-1, 96))),
        Case("sort", lambda x, y, w, i, f: x.sort(1).values),
        Case("topk", lambda x, y, w, i, f: x.flatten().topk(50).values),
        Case("cumsum", lambda x, y, w, i, f: x.cumsum(1)),
        Case("cross_entropy", lambda x, y, w, i, f: f.cross_entropy(x, i).view(1)),
        Case("fft", lambda x, y, w, i, f: torch.fft.rfft(x).abs(), only_float32=True),
        Case("solve", lambda x, y, w, i, f: torch.linalg.solve(x[:, :64] + 20 * x.new_ones(64).diag(), y),
             only_float32=True),
    ]  # fmt: skip
