"""Operators that are bound by memory: GB/s of the bytes that must move, the fraction of a dense copy, and the peer's.

Shapes are of BERT-base (64 x 128), ResNet50 (128 images), VGG16 (64), GPT 124M (8 x 1,024 tokens), and of 256 MiB. What
must move: each input and output once, inputs of batch and group norms twice, for their statistics. The copy is of as
many bytes, so caches and launches are the same on both sides. The time is the device's, from the first of many calls to
the last, which the host records while the device still does something else; "host" marks a row where it did not keep
ahead. What a call takes with its host stands beside it. Results of the first call are compared with the peer's. Kernels
are listed for the rows below the goal. --only REGEX measures the rows whose name it matches.
"""

import math
import os
import re
import sys
from time import perf_counter

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

GOAL = 0.85
BUSY = 0.01  # seconds before a row is timed: the row before it kept the GPU awake
PAUSE, AWAKE = 0.05, 0.3  # ... unless the host compiled for so long: then copies wake it
BERT, WIDE, LARGE, LOGITS = (8192, 768), (8192, 3072), (65536, 1024), (8192, 50257)
IMAGES = ((128, 256, 56, 56), (128, 2048, 7, 7))
PART = 1


def fit(*shapes):
    """The shapes, with a 256th of the rows or images where a CPU computes."""
    return [(max(1, shape[0] // PART), *shape[1:]) for shape in shapes]


def values(device, dtype, *shape, salt=0):
    """Numbers from -2 to 2, the same on every device."""
    import torch

    i = torch.arange(math.prod(shape), dtype=torch.int32, device=device)
    return ((i * 1640531527 + salt * 362437) >> 16).float().div(16384).to(dtype).view(shape)


def elementwise(t, device, dtype, e):
    import torch
    import torch.nn.functional as F

    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    for shape in fit(WIDE, LARGE):
        x, y, n = t(*shape), t(*shape, salt=1), math.prod(shape)
        yield "copy", shape, lambda: x.clone(), 2 * e * n
        yield "residual add", shape, lambda: x + y, 3 * e * n
        yield f"cast to {str(other)[6:]}", shape, lambda: x.to(other), 6 * n
        yield "gelu", shape, lambda: F.gelu(x), 2 * e * n
        yield "gelu, gradient", shape, lambda: torch.ops.aten.gelu_backward(y, x), 3 * e * n
        yield "dropout", shape, lambda: torch.ops.aten.native_dropout(x, 0.1, True), (2 * e + 1) * n
    square = t(8192 // PART, 8192)
    yield (
        "copy, transposed",
        tuple(square.shape),
        lambda: square.t().clone(memory_format=torch.contiguous_format),
        2 * e * square.numel(),
    )
    for name, dims in (("all", (0, 1)), ("rows", 1), ("columns", 0)):
        yield f"sum of {name}", shape, lambda: x.sum(dims), e * n


def softmax(t, device, dtype, e):
    import torch

    aten = torch.ops.aten
    for shape in fit((64 * 12 * 128, 128), (8 * 12 * 1024, 1024), LOGITS):
        x, g, n = t(*shape), t(*shape, salt=1), math.prod(shape)
        y = x.softmax(1)
        if shape[1] != LOGITS[1]:
            yield "softmax", shape, lambda: x.softmax(1), 2 * e * n
            yield "softmax, gradient", shape, lambda: aten._softmax_backward_data(g, y, 1, dtype), 3 * e * n
        y = x.log_softmax(1)
        yield "log_softmax", shape, lambda: x.log_softmax(1), 2 * e * n
        yield "log_softmax, gradient", shape, lambda: aten._log_softmax_backward_data(g, y, 1, dtype), 3 * e * n


def cross_entropy(t, device, dtype, e):
    import torch
    import torch.nn.functional as F

    (shape,) = fit(LOGITS)
    n = math.prod(shape)
    x = t(*shape).requires_grad_()
    target = torch.arange(shape[0], device=device) * 5 % shape[1]
    with torch.enable_grad():
        loss = F.cross_entropy(x, target)
    yield "cross_entropy", shape, lambda: F.cross_entropy(x, target), 2 * e * n
    gradient = lambda: torch.autograd.grad(loss, x, retain_graph=True)[0]  # noqa: E731
    yield "cross_entropy, gradient", shape, gradient, 2 * e * n


def norm(t, device, dtype, e):
    import torch
    import torch.nn.functional as F

    aten = torch.ops.aten
    for shape in fit(BERT, LARGE):
        x, g, n, size = t(*shape), t(*shape, salt=1), math.prod(shape), [shape[1]]
        w, b = t(shape[1], salt=2), t(shape[1], salt=3)
        _, mean, rstd = torch.native_layer_norm(x, size, w, b, 1e-5)
        yield "layer_norm", shape, lambda: F.layer_norm(x, size, w, b), 2 * e * n
        backward = lambda: aten.native_layer_norm_backward(g, x, size, mean, rstd, w, b, [True] * 3)  # noqa: E731
        yield "layer_norm, gradient", shape, backward, 3 * e * n
        yield "rms_norm", shape, lambda: F.rms_norm(x, size, w), 2 * e * n
        xs = x.detach().requires_grad_()
        with torch.enable_grad():
            y = F.rms_norm(xs, size, w)
        yield "rms_norm, gradient", shape, lambda: torch.autograd.grad(y, xs, g, retain_graph=True)[0], 3 * e * n


def channel_norm(t, device, dtype, e):
    import torch
    import torch.nn.functional as F

    if dtype != torch.float32:  # autocast for mps computes batch norm in float32
        return

    aten = torch.ops.aten
    for shape in fit(*IMAGES):
        n, c = math.prod(shape), shape[1]
        w, b, mean, var = (values(device, torch.float32, c, salt=k) for k in range(4))
        var = var.abs() + 1
        running = [mean.clone(), var.clone()]
        for layout in ("", ", channels_last"):
            x, g = t(*shape), t(*shape, salt=1)
            if layout:
                x, g = (v.to(memory_format=torch.channels_last) for v in (x, g))
            yield f"batch_norm{layout}", shape, lambda: F.batch_norm(x, *running, w, b, True), 3 * e * n
            yield f"batch_norm, evaluation{layout}", shape, lambda: F.batch_norm(x, mean, var, w, b), 2 * e * n
            _, m, r = torch.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5)
            yield (
                f"batch_norm, gradient{layout}",
                shape,
                lambda: aten.native_batch_norm_backward(g, x, w, mean, var, m, r, True, 1e-5, [True] * 3),
                5 * e * n,
            )
        x, g, w, b = t(*shape), t(*shape, salt=1), w.to(dtype), b.to(dtype)
        yield "group_norm", shape, lambda: F.group_norm(x, 32, w, b), 3 * e * n
        size = (shape[0], c, shape[2] * shape[3])
        _, m, r = torch.native_group_norm(x, w, b, *size, 32, 1e-5)
        backward = lambda: aten.native_group_norm_backward(g, x, m, r, w, *size, 32, [True] * 3)  # noqa: E731
        yield "group_norm, gradient", shape, backward, 5 * e * n


def pool(t, device, dtype, e):
    import torch
    import torch.nn.functional as F

    if dtype != torch.float32:
        return

    aten = torch.ops.aten
    for shape, k, stride, pad in (((128, 64, 112, 112), 3, 2, 1), ((64, 64, 224, 224), 2, 2, 0)):
        (shape,) = fit(shape)
        x, n = t(*shape), math.prod(shape)
        window = [[k, k], [stride, stride], [pad, pad]]
        y, places = aten.max_pool2d_with_indices(x, *window)
        yield (
            f"max_pool2d {k} x {k}",
            shape,
            lambda: aten.max_pool2d_with_indices(x, *window),
            e * n + (e + 8) * y.numel(),
        )
        backward = lambda: aten.max_pool2d_with_indices_backward(y, x, *window, [1, 1], False, places)  # noqa: E731
        yield f"max_pool2d {k} x {k}, gradient", shape, backward, e * n + (e + 8) * y.numel()
    yield "avg_pool2d 2 x 2", shape, lambda: F.avg_pool2d(x, 2), e * (n + n // 4)
    backward = lambda: aten.avg_pool2d_backward(y, x, [2, 2], [2, 2], [0, 0], False, True, None)  # noqa: E731
    yield "avg_pool2d 2 x 2, gradient", shape, backward, e * (n + n // 4)
    for shape in fit(*IMAGES):
        x, y, n = t(*shape), t(*shape[:2], 1, 1), math.prod(shape)
        yield "adaptive_avg_pool2d 1", shape, lambda: F.adaptive_avg_pool2d(x, 1), e * n
        backward = lambda: aten._adaptive_avg_pool2d_backward(y, x)  # noqa: E731
        yield "adaptive_avg_pool2d 1, gradient", shape, backward, e * n


def gradient_sum(t, device, dtype, e):
    import torch

    for shape in fit(BERT, WIDE):
        x = t(*shape)
        yield "bias gradient of rows", shape, lambda: x.sum(0), e * x.numel()
    for shape in fit(*IMAGES):
        x = t(*shape)
        yield "bias gradient of images", shape, lambda: x.sum((0, 2, 3)), e * x.numel()
    (shape,) = fit(BERT)
    g, tokens = t(*shape), torch.arange(shape[0], device=device) * 40503 % 30000
    backward = lambda: torch.ops.aten.embedding_dense_backward(g, tokens, 30522, -1, False)  # noqa: E731
    yield "embedding, gradient", (30522, 768), backward, e * (30522 * 768 + g.numel()) + 8 * shape[0]


def optimizer(t, device, dtype, e):
    import torch

    if dtype != torch.float32:
        return
    layer = [(768, 768), (768,)] * 4 + [(3072, 768), (3072,), (768, 3072)] + [(768,)] * 5
    bert = [(30522, 768), (512, 768), (2, 768), (768,), (768,), (768, 768), (768,), (2, 768), (2,)] + layer * 12
    resnet, before = [(64, 3, 7, 7), (64,), (64,), (1000, 2048), (1000,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convs = [(width, before, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            convs += [(4 * width, before, 1, 1)] if block == 0 else []
            resnet += [s for conv in convs for s in (conv, conv[:1], conv[:1])]
            before = 4 * width
    for name, shapes in (("ResNet50", resnet), ("BERT-base", bert)):
        weights = [t(*shape, salt=1).requires_grad_() for shape in fit(*shapes)]
        for w in weights:
            w.grad = t(*w.shape, salt=2)
        n = sum(w.numel() for w in weights)
        before = [w.detach().clone() for w in weights]
        for kind, options, moved in (("SGD", {"momentum": 0.9}, 20), ("Adam", {}, 28), ("AdamW", {}, 28)):
            for w, old in zip(weights, before, strict=True):
                w.copy_(old)
            step = getattr(torch.optim, kind)(weights, lr=1e-3, fused=True, **options).step
            yield f"{kind}, fused, {name}", (n,), lambda: (step(), weights[:8])[1], moved * n


GROUPS = (elementwise, softmax, cross_entropy, norm, channel_norm, pool, gradient_sum, optimizer)


def samples(results):
    """Some numbers of the first result, and the mean magnitude of each."""
    import torch

    found = [r.detach().float() for r in ([results] if isinstance(results, torch.Tensor) else results) if r is not None]
    flat = found[0].flatten()
    return [float(r.abs().mean()) for r in found] + flat[:: max(1, flat.numel() // 61)].tolist()


def seconds(call, device, filler):
    """Seconds of a call by the device, those of a whole call, and whether the host kept ahead of the device."""
    first = peer.median_seconds(call, device, inner=5, repeats=1, busy=0.0)
    inner = max(2, min(300, int(0.004 / first)))
    whole = peer.median_seconds(call, device, inner=inner, repeats=3, busy=BUSY)
    return (*peer.device_seconds(call, filler, whole, inner), whole) if filler else (whole, True, whole)


def kernels(call, device):
    """Microseconds of each kernel of one call."""
    if device != "mps":
        return {}
    import torch_anymps

    with torch_anymps.profile() as profile:
        for _ in range(3):
            call()
    return {f"{k.name}, {k.shape}": k.seconds / 3 * 1e6 for k in profile.kernels}


def measure(device):
    import torch

    global PART
    PART = 256 if device == "cpu" or "llvmpipe" in peer.device_name(device) else 1

    only, figures = re.compile(os.environ.get("ANYMPS_BENCHMARK_ONLY", "")), {}
    filler = None if device == "cpu" else peer.Filler(device, (1 << 29) // PART)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for group in GROUPS:
                make = lambda *shape, salt=0: values(device, dtype, *shape, salt=salt)  # noqa: B023, E731
                for name, shape, call, moved in group(make, device, dtype, dtype.itemsize):
                    key = f"{name} | {' x '.join(map(str, shape))} | {str(dtype)[6:]}"
                    if not only.search(key):
                        continue
                    begin = perf_counter()
                    result = call()
                    found = [] if name == "dropout" else samples(result)
                    del result
                    pause = perf_counter() - begin
                    if filler and pause > PAUSE:
                        filler(AWAKE)
                    time, ahead, whole = seconds(call, device, filler)
                    figures[key] = {
                        "bytes": moved,
                        "GB/s": moved / time / 1e9,
                        "whole": whole * 1e6,
                        "ahead": ahead,
                        "found": found,
                        "kernels": kernels(call, device),
                    }
                    line = f"{moved / time / 1e9:.0f} GB/s, {time * 1e6:.1f} us, whole call {whole * 1e6:.1f} us"
                    line += f", after {pause:.2f} s" + ("" if ahead else ", host")
                    print(f"{device} | {key} | {line}", file=sys.stderr, flush=True)
        copies = {}
        for size in sorted({2 ** round(math.log2(f["bytes"])) for f in figures.values()}):
            x = torch.zeros(size // 2, dtype=torch.uint8, device=device)
            copies[size] = size / seconds(lambda: x.clone(), device, filler)[0] / 1e9  # noqa: B023
    return {"rows": figures, "copies": copies}


def differs(found, expected, key):
    tolerance = 2e-2 if "bfloat16" in key else 1e-3
    scale = max([abs(v) for v in expected] + [1e-6])
    return any(not abs(a - b) <= tolerance * scale for a, b in zip(found, expected, strict=True))


def table(ours, theirs, name):
    mps, other = ours["figures"], theirs["figures"]
    print("copies of bytes, GB/s: " + ", ".join(f"{int(k) >> 20} MiB {v:.0f}" for k, v in mps["copies"].items()))
    heads = f"mps, GB/s | of a copy | {name}, GB/s | mps / {name} | whole call, us | {name}, us"
    print(f"| what | shape | type | MB | {heads} | |\n" + "|---" * 11 + "|")
    wrong, slow, rows = [], [], {}
    for key, row in mps["rows"].items():
        speed, copy = row["GB/s"], mps["copies"][str(2 ** round(math.log2(row["bytes"])))]
        expected = other["rows"].get(key)
        speeds = [expected["GB/s"], speed / expected["GB/s"]] if expected else [None, None]
        rows[key] = [speed, speed / copy, *speeds]
        line = f"| {key} | {row['bytes'] / 1e6:.0f} | {speed:.0f} | {speed / copy:.2f} "
        line += f"| {expected['GB/s']:.0f} | {speed / expected['GB/s']:.2f} " if expected else "| - | - "
        line += f"| {row['whole']:.0f} | {expected['whole']:.0f} |" if expected else f"| {row['whole']:.0f} | - |"
        line += "" if row["ahead"] and (not expected or expected["ahead"]) else " host"
        print(line + (" below |" if speed < GOAL * copy else " |"))
        slow += [key] if speed < GOAL * copy else []
        if expected and differs(row["found"], expected["found"], key):
            wrong.append((key, row["found"], expected["found"]))
    print(f"\nBelow {GOAL}: {len(slow)} of {len(mps['rows'])}; microseconds of their kernels")
    for key in slow:
        print(f"- {key}: " + "; ".join(f"{name} {us:.1f}" for name, us in mps["rows"][key]["kernels"].items()))
    for key, found, expected in wrong:
        print(f"\nDIFFERS: {key}\n{found[:12]}\n{expected[:12]}")
    print(f"{len(wrong)} of {len(mps['rows'])} rows differ from those of the peer")
    return ["mps, GB/s", "of a copy", f"{name}, GB/s", f"mps / {name}"], rows


if __name__ == "__main__":
    peer.run(measure, "GB/s", "Bandwidth", table=table)
