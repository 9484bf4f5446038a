"""Launches operators and their gradients on a device that runs nothing, such as a null driver: their results mean
nothing, so that none whose sizes depend on these is here.

Prints JSON: {"device": name, "launched": count, "errors": {operator: message}}.
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def weight(x, *shape):
    return torch.ones(shape, device=x.device, dtype=x.dtype)


def steps(x, count, below):
    return torch.arange(count, device=x.device) % below


# name -> (function, shape of its input)
OPERATORS = {
    "pointwise": (lambda x: (x.exp() + x.tanh().erfinv() * x.abs() ** 1.7).sigmoid(), (1000,)),
    "strided": (lambda x: x.mT + x.flip(0).mT, (33, 65)),
    "sums": (lambda x: x.sum() + x.sum(0).sum() + x.sum(1).sum(), (300, 3000)),
    "short rows": (lambda x: x.sum(1), (3000, 7)),
    "long sum": (lambda x: x.sum(), (3_000_000,)),
    "var": (lambda x: x.var(1) + x.norm(dim=1), (9, 3000)),
    "extremes": (lambda x: x.amax(1) + x.argmin(1) + x.min(1).values, (70, 500)),
    "scans": (lambda x: x.cumsum(1) + x.cummax(1).values + x.logcumsumexp(1), (5, 3000)),
    "columns of scans": (lambda x: x.cumsum(0) + x.cumprod(0), (300, 9)),
    "sort": (lambda x: x.sort(1).values, (4, 5000)),
    "long sort": (lambda x: x.sort(1).values, (2, 300_000)),
    "integers sorted": (lambda x: x.long().sort(1).values, (2, 5000)),
    "selections": (lambda x: x.topk(100).values.sum() + x.kthvalue(9, 1).values.sum(), (3, 30_000)),
    "median": (lambda x: x.median(1).values, (4, 301)),
    "softmax": (lambda x: x.softmax(1) + x.log_softmax(1), (9, 1000)),
    "long softmax": (lambda x: x.softmax(1), (4, 50_257)),
    "cross entropy": (lambda x: F.cross_entropy(x, steps(x, 64, 9)), (64, 5000)),
    "layer norm": (lambda x: F.layer_norm(x, (768,), weight(x, 768), weight(x, 768)), (1024, 768)),
    "rms norm": (lambda x: F.rms_norm(x, (100,), weight(x, 100)), (70, 100)),
    "group norm": (lambda x: F.group_norm(x, 2), (3, 4, 15, 16)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (16, 12, 17, 16)),
    "batch norm of small planes": (lambda x: F.batch_norm(x, None, None, training=True), (16, 64, 7, 7)),
    "product": (lambda x: x @ x.mT, (512, 768)),
    "odd product": (lambda x: x @ x.mT, (255, 333)),
    "batch of products": (lambda x: x @ x.mT, (6, 70, 130)),
    "vectors": (lambda x: x @ x[0], (300, 500)),
    "integer product": (lambda x: (x.long() @ x.long().mT).to(x.dtype), (33, 40)),
    "convolution": (lambda x: F.conv2d(x, weight(x, 64, 32, 3, 3), padding=1), (4, 32, 28, 28)),
    "strided convolution": (lambda x: F.conv2d(x, weight(x, 8, 3, 7, 7), stride=2, padding=3), (2, 3, 40, 42)),
    "one tap": (lambda x: F.conv2d(x, weight(x, 64, 64, 1, 1)), (4, 64, 28, 28)),
    "depthwise": (lambda x: F.conv2d(x, weight(x, 32, 1, 3, 3), groups=32), (2, 32, 9, 9)),
    "depthwise, NHWC": (
        lambda x: F.conv2d(x.to(memory_format=torch.channels_last), weight(x, 32, 1, 7, 7), groups=32, stride=2),
        (2, 32, 9, 9),
    ),
    "depthwise, 1-d": (lambda x: F.conv1d(x, weight(x, 32, 1, 9), groups=32), (2, 32, 40)),
    "3-d convolution": (lambda x: F.conv3d(x, weight(x, 4, 3, 3, 3, 3)), (2, 3, 6, 7, 8)),
    "transposed": (lambda x: F.conv_transpose2d(x, weight(x, 3, 4, 3, 3), stride=2), (2, 3, 5, 6)),
    "pools": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 3, 2, 1), (2, 3, 16, 16)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 3, 8, 8)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (2, 4, 256, 64)),
    "attention with wide heads": (lambda x: F.scaled_dot_product_attention(x, x, x), (2, 2, 100, 128)),
    "one query": (lambda x: F.scaled_dot_product_attention(x[:, :, :1], x, x), (2, 4, 600, 64)),
    "indices": (lambda x: x[steps(x, 20, 10)] + F.embedding(steps(x, 20, 10), x), (10, 30)),
    "scatter": (lambda x: torch.zeros_like(x).index_add(0, steps(x, 20, 10), x), (20, 4)),
    "dropout": (lambda x: F.dropout(x, 0.5), (5000,)),
    "cat": (lambda x: torch.cat([x, x * 2], 1), (30, 70)),
    "transforms": (lambda x: torch.fft.fft(x.float()).real + torch.fft.fft2(x.float()).real, (30, 1024)),
    "long transform": (lambda x: torch.fft.fft(x.float()).real, (3, 5000)),
    "transform of a prime": (lambda x: torch.fft.rfft(x.float()).real, (3, 1009)),
    "histogram": (lambda x: torch.histc(x.detach().float(), 20, -1, 1), (5000,)),
}


def launch(function, shape, dtype) -> None:
    x = torch.randn(shape).to("mps", dtype).requires_grad_()
    y = function(x)
    if y.requires_grad:
        torch.autograd.grad(y, x, torch.ones_like(y))
    torch.mps.synchronize()


def step(optimizer, fused) -> None:
    layer = torch.nn.Linear(30, 40).to("mps")
    optimizer = optimizer(layer.parameters(), 1e-3, fused=fused)
    layer(torch.randn(5, 30, device="mps")).sum().backward()
    optimizer.step()
    torch.mps.synchronize()


def main() -> None:
    calls = {f"{name} of {t}": (launch, *args, t) for name, args in OPERATORS.items() for t in FLOATS}
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        calls |= {f"{optimizer.__name__}, fused={fused}": (step, optimizer, fused) for fused in (False, True)}
    errors = {}
    for name, (function, *args) in calls.items():
        try:
            function(*args)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    device = json.loads(torch.ops.anymps.device_info())["name"]
    print(json.dumps({"device": device, "launched": len(calls), "errors": errors}))


if __name__ == "__main__":
    main()
