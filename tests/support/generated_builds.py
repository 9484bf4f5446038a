"""Builds kernels that torch.compile generates, without launching any; prints what the driver's compiler says of them.

A program of test_compilers.py. The last line is JSON: {"device", "subgroup_size", "statistics": {kernel: {...}}}.
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.replace_random import replace_random_passes
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

config.force_disable_caches = True
sources: dict[str, str] = {}


def with_gradients(function):
    def both(*inputs):
        inputs = [t.detach().requires_grad_() if t.is_floating_point() else t for t in inputs]
        result = function(*inputs)
        return result, torch.autograd.grad(result.float().sum(), [t for t in inputs if t.is_floating_point()])

    return both


def random(*shape, dtype=torch.float32):
    return lambda: torch.randn(shape, device="mps").to(dtype)


def indices(most, *shape):
    return lambda: torch.randint(0, most, shape, device="mps")


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


HALF = torch.bfloat16
CASES = {
    "activation": (with_gradients(lambda a, b: F.gelu(a + b) * torch.sigmoid(a)), random(512, 768), random(768)),
    "activation in bf16": (with_gradients(lambda a, b: F.silu(a * b)), random(512, 768, dtype=HALF), random(768)),
    "tanh and clamp": (lambda a: (a * 3).tanh().clamp(-0.5, 0.5) + a.exp().log1p(), random(512, 768)),
    "softmax": (with_gradients(lambda a: torch.softmax(a * 2, -1)), random(512, 1024)),
    "softmax of long rows": (lambda a: torch.softmax(a * 2, -1), random(64, 50257)),
    "layer_norm": (
        with_gradients(lambda a, w, b: F.silu(F.layer_norm(a, (768,), w, b)) + a),
        random(4096, 768),
        random(768),
        random(768),
    ),
    "rms_norm": (
        with_gradients(lambda a, w: F.rms_norm(a, (2048,), w)),
        random(512, 2048, dtype=HALF),
        random(2048, dtype=HALF),
    ),
    "sums": (lambda a, b: ((a * b).sum(0), (a * b).sum(1), (a * b).sum(), a.var(0)), random(4096, 1024), random(1024)),
    "positions": (lambda a: (a.argmax(-1), a.argmin(0), a.amax(1)), random(512, 1000)),
    "integers": (lambda a: (a * 3 // 7 % 5, a.sum(1), a > 4), indices(100, 512, 300)),
    "transposition": (lambda a, b: (a.t() + b).contiguous(), random(512, 768), random(768, 512)),
    "concatenation": (lambda a, b: F.pad(torch.cat([a, b], 1), (1, 2)) * 2, random(512, 60), random(512, 70)),
    "dropout": (with_gradients(lambda a: F.dropout(a * 2, 0.1)), random(512, 768)),
    "embedding": (with_gradients(lambda w, i: F.embedding(i, w).tanh()), random(1000, 768), indices(1000, 4, 128)),
    "cross_entropy": (with_gradients(F.cross_entropy), random(512, 1000), indices(1000, 512)),
    "convolution's surroundings": (
        with_gradients(lambda a, w, b: F.relu(F.batch_norm(a, None, None, w, b, True)) + a),
        random(8, 64, 28, 28),
        random(64),
        random(64),
    ),
    "batch_norm, channels last": (
        with_gradients(lambda a, w, b: F.relu(F.batch_norm(channels_last(a), None, None, w, b, True))),
        random(32, 64, 56, 56),
        random(64),
        random(64),
    ),
    "group_norm": (
        with_gradients(lambda a, w, b: F.silu(F.group_norm(a, 32, w, b))),
        random(4, 320, 32, 32),
        random(320),
        random(320),
    ),
    "layer_norm of long rows": (
        with_gradients(lambda a, w, b: F.gelu(F.layer_norm(a, (4096,), w, b))),
        random(2048, 4096),
        random(4096),
        random(4096),
    ),
    "dropout, residual, layer_norm": (
        with_gradients(lambda a, c, w, b: F.layer_norm(F.dropout(a, 0.1) + c, (1024,), w, b)),
        random(4096, 1024, dtype=HALF),
        random(4096, 1024, dtype=HALF),
        random(1024),
        random(1024),
    ),
    "cross_entropy of a vocabulary": (
        with_gradients(F.cross_entropy),
        random(512, 50257, dtype=HALF),
        indices(50257, 512),
    ),
    "softmax behind a mask": (
        with_gradients(lambda a, m: torch.softmax(a.masked_fill(m > 0, -1e9) / 8, -1)),
        random(8, 12, 512, 512),
        indices(2, 512, 512),
    ),
    "rotary embedding": (
        with_gradients(lambda q, c, s: q * c + torch.cat([-q[..., 32:], q[..., :32]], -1) * s),
        random(2, 16, 512, 64, dtype=HALF),
        random(512, 64),
        random(512, 64),
    ),
    "standardized rows": (
        with_gradients(lambda a: (a - a.mean(-1, keepdim=True)) / a.std(-1, keepdim=True)),
        random(2048, 1536),
    ),
    "pooling": (with_gradients(lambda a: F.max_pool2d(a, 3, 2, 1)), random(8, 64, 56, 56)),
    "interpolation": (
        with_gradients(lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear")),
        random(4, 64, 32, 32),
    ),
}


def main() -> None:
    from torch._inductor.codegen.common import init_backend_registration

    init_backend_registration()
    from torch_anymps.inductor import runtime
    from torch_anymps.inductor.device import device_config

    def collect(name, config, messages, source):
        sources[f"{current[-1]}: {name}"] = source.strip("\n")
        return lambda *args: None

    current = []
    runtime.kernel = collect
    for case, (function, *inputs) in CASES.items():
        current.append(case)
        with FakeTensorMode() as fake, V.set_fake_mode(fake):
            tensors = [make() for make in inputs]
            flat = lambda *t, f=function: tree_leaves(f(*t))  # noqa: E731
            graph = make_fx(flat, decomposition_table=select_decomp_table())(*tensors)
            replace_random_passes(graph)
            compile_fx_inner(graph, tensors)
    device = device_config()
    statistics = {}
    for name, source in sources.items():
        labels, numbers = torch.ops.anymps.source_statistics(name, source, [device.workgroup, device.subgroup])
        statistics[name] = dict(zip(labels, numbers, strict=True))
    print(json.dumps({"device": device.name, "subgroup_size": device.subgroup, "statistics": statistics}))


if __name__ == "__main__":
    main()
