"""Every family of operators, in microseconds of one call, and at the end those below half of the peer's speed.

ANYMPS_BENCHMARK_ELEMENTS is the size of an input: 16 Mi on GPUs, 1 Mi where a CPU computes (a software driver too).
--only REGEX measures the figures whose "family: name" it matches.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402


def elements(device):
    given = os.environ.get("ANYMPS_BENCHMARK_ELEMENTS")
    computed_by_cpu = device == "cpu" or "llvmpipe" in peer.device_name(device)
    return int(given) if given else 2**20 if computed_by_cpu else 2**24


def pointwise(t, n, device):
    import torch
    import torch.nn.functional as F

    x, y = t(n), t(n)
    ints, half = (x * 1000).long(), x.half()
    rows, row, column = t(n // 1024, 1024), t(1024), t(n // 1024, 1)
    square = t(int(n**0.5), int(n**0.5))
    imaginary = torch.complex(x, y)
    mask = x > 0
    return {
        "add": lambda: x + y,
        "add of a number": lambda: x + 1,
        "add, half": lambda: half + half,
        "add, int64": lambda: ints + ints,
        "add of a row": lambda: rows + row,
        "add of a column": lambda: rows + column,
        "add of a transpose": lambda: square + square.t(),
        "division, int64, floor": lambda: ints // 7,
        "comparison": lambda: x < y,
        "where": lambda: torch.where(mask, x, y),
        "masked_fill": lambda: x.masked_fill(mask, 0.0),
        "clamp": lambda: x.clamp(-1, 1),
        "cast to half": lambda: x.half(),
        "cast of int64 to float": lambda: ints.float(),
        "exp": lambda: x.exp(),
        "sin": lambda: x.sin(),
        "pow": lambda: torch.pow(x.abs(), y),
        "erfinv": lambda: x.erfinv(),
        "lgamma": lambda: torch.lgamma(x),
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "multiplication, complex": lambda: imaginary * imaginary,
        "exp, complex": lambda: imaginary.exp(),
    }


def reduction(t, n, device):
    import torch

    x, rows, deep = t(n), t(n // 1024, 1024), t(64, n // 64 // 256, 256)
    ints = (x * 1000).long()
    return {
        "sum": lambda: x.sum(),
        "sum, int64": lambda: ints.sum(),
        "sum of rows": lambda: rows.sum(1),
        "sum of columns": lambda: rows.sum(0),
        "sum of a middle dimension": lambda: deep.sum(1),
        "prod": lambda: x.prod(),
        "max": lambda: x.max(),
        "max of rows, with indices": lambda: rows.max(1),
        "max of columns, with indices": lambda: rows.max(0),
        "argmax": lambda: x.argmax(),
        "any": lambda: (x == 100).any(),
        "var_mean of rows": lambda: torch.var_mean(rows, 1),
        "std": lambda: x.std(),
        "norm": lambda: torch.linalg.vector_norm(x),
        "logsumexp of rows": lambda: rows.logsumexp(1),
        "aminmax": lambda: x.aminmax(),
        "count_nonzero": lambda: x.count_nonzero(),
    }


def scan_and_sort(t, n, device):
    import torch

    x, rows = t(n), t(n // 1024, 1024)
    ints = (x * 1000).int()
    sorted_values, _ = x.sort()
    return {
        "cumsum": lambda: x.cumsum(0),
        "cumsum of rows": lambda: rows.cumsum(1),
        "cumsum of columns": lambda: rows.cumsum(0),
        "cumprod of rows": lambda: rows.cumprod(1),
        "cummax of rows": lambda: rows.cummax(1),
        "logcumsumexp of rows": lambda: rows.logcumsumexp(1),
        "sort": lambda: x.sort(),
        "sort, int32": lambda: ints.sort(),
        "sort of rows": lambda: rows.sort(1),
        "topk 10 of rows": lambda: rows.topk(10, 1),
        "topk 100": lambda: x.topk(100),
        "kthvalue of rows": lambda: rows.kthvalue(100, 1),
        "median": lambda: x.median(),
        "unique": lambda: ints.unique(),
        "searchsorted": lambda: torch.searchsorted(sorted_values, x),
        "bincount": lambda: torch.bincount(ints.abs()),
        "histc": lambda: torch.histc(x, 100),
    }


def indexing(t, n, device):
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    count = n // 64

    def places(high, *shape):
        return torch.randint(high, shape, generator=generator).to(device)

    x, rows = t(n), t(count, 64)
    some, every, within = places(count, count), places(n, n), places(64, count, 64)
    mask = x > 0
    rough = t(count, 64)
    return {
        "index_select of rows": lambda: rows.index_select(0, some),
        "x[i] of rows": lambda: rows[some],
        "x[i] = rows": lambda: rows.clone().index_put_((some,), rough),
        "x[i] += rows": lambda: rows.clone().index_put_((some,), rough, accumulate=True),
        "index_add of rows": lambda: rows.index_add(0, some, rough),
        "gather": lambda: rows.gather(1, within),
        "scatter": lambda: rows.scatter(1, within, rough),
        "scatter_add": lambda: rows.scatter_add(1, within, rough),
        "take": lambda: x.take(every),
        "masked_select": lambda: x.masked_select(mask),
        "nonzero": lambda: mask.nonzero(),
        "embedding": lambda: F.embedding(some, rows),
        "embedding, gradient": lambda: torch.ops.aten.embedding_dense_backward(rough, some, count, -1, False),
        "cat": lambda: torch.cat((rows, rough), 1),
        "flip": lambda: rows.flip(1),
        "roll": lambda: rows.roll(3, 1),
        "tril": lambda: rows.tril(),
        "repeat_interleave": lambda: rows.repeat_interleave(2, 0),
        "pad": lambda: F.pad(rows, (1, 1, 1, 1)),
        "unfold": lambda: x.unfold(0, 4, 2).contiguous(),
    }


def norm(t, n, device):
    import torch
    import torch.nn.functional as F

    rows, images = t(n // 1024, 1024), t(n // (64 * 32 * 32), 64, 32, 32)
    weight, bias = t(1024), t(1024)
    scale, shift, mean, var = t(64), t(64), t(64), t(64).abs() + 1
    images_last = images.contiguous(memory_format=torch.channels_last)
    target = torch.zeros(n // 1024, dtype=torch.long, device=device)
    softmax = rows.softmax(1)
    gradient, image_gradient = torch.randn_like(rows), torch.randn_like(images)
    _, layer_mean, layer_rstd = torch.native_layer_norm(rows, [1024], weight, bias, 1e-5)
    _, batch_mean, batch_rstd = torch.native_batch_norm(images, scale, shift, mean, var, True, 0.1, 1e-5)
    aten = torch.ops.aten
    return {
        "softmax": lambda: rows.softmax(1),
        "softmax, gradient": lambda: aten._softmax_backward_data(gradient, softmax, 1, torch.float32),
        "softmax of columns": lambda: rows.softmax(0),
        "log_softmax": lambda: rows.log_softmax(1),
        "cross_entropy": lambda: F.cross_entropy(rows, target),
        "layer_norm": lambda: F.layer_norm(rows, [1024], weight, bias),
        "layer_norm, gradient": lambda: aten.native_layer_norm_backward(
            gradient, rows, [1024], layer_mean, layer_rstd, weight, bias, [True, True, True]
        ),
        "rms_norm": lambda: F.rms_norm(rows, [1024], weight),
        "batch_norm, training": lambda: F.batch_norm(images, mean, var, scale, shift, True),
        "batch_norm, training, channels_last": lambda: F.batch_norm(images_last, mean, var, scale, shift, True),
        "batch_norm, evaluation": lambda: F.batch_norm(images, mean, var, scale, shift),
        "batch_norm, gradient": lambda: aten.native_batch_norm_backward(
            image_gradient, images, scale, mean, var, batch_mean, batch_rstd, True, 1e-5, [True, True, True]
        ),
        "group_norm": lambda: F.group_norm(images, 8, scale, shift),
        "instance_norm": lambda: F.instance_norm(images),
        "normalize": lambda: F.normalize(rows),
    }


def image(t, n, device):
    import torch
    import torch.nn.functional as F

    images = t(n // (64 * 64 * 64), 64, 64, 64)
    pooled, places = F.max_pool2d(images, 2, return_indices=True)
    grid = t(images.shape[0], 64, 64, 2).clamp(-1, 1)
    aten = torch.ops.aten
    return {
        "max_pool2d": lambda: F.max_pool2d(images, 2),
        "max_pool2d 3 x 3, stride 2": lambda: F.max_pool2d(images, 3, 2, 1),
        "max_pool2d, gradient": lambda: aten.max_pool2d_with_indices_backward(
            pooled, images, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        ),
        "avg_pool2d": lambda: F.avg_pool2d(images, 2),
        "avg_pool2d, gradient": lambda: aten.avg_pool2d_backward(
            pooled, images, [2, 2], [2, 2], [0, 0], False, True, None
        ),
        "adaptive_avg_pool2d 1": lambda: F.adaptive_avg_pool2d(images, 1),
        "interpolate, nearest": lambda: F.interpolate(pooled, scale_factor=2),
        "interpolate, bilinear": lambda: F.interpolate(pooled, scale_factor=2, mode="bilinear"),
        "interpolate, bilinear, gradient": lambda: aten.upsample_bilinear2d_backward(
            images, [64, 64], list(pooled.shape), False, 2.0, 2.0
        ),
        "interpolate, bicubic, antialias": lambda: F.interpolate(images, size=(32, 32), mode="bicubic", antialias=True),
        "grid_sample": lambda: F.grid_sample(images, grid, align_corners=False),
        "pixel_shuffle": lambda: F.pixel_shuffle(images, 2),
        "unfold (im2col)": lambda: F.unfold(pooled, 3, padding=1),
    }


def randomness(t, n, device):
    import torch
    import torch.nn.functional as F

    x = t(n)
    weights = t(1024, 1024).abs()
    return {
        "uniform_": lambda: x.uniform_(),
        "normal_": lambda: x.normal_(),
        "exponential_": lambda: x.exponential_(),
        "bernoulli_": lambda: x.bernoulli_(0.5),
        "randint": lambda: torch.randint(10, (n,), device=device),
        "dropout": lambda: F.dropout(x, 0.1),
        "randperm": lambda: torch.randperm(n, device=device),
        "multinomial": lambda: weights.multinomial(10),
    }


def many_tensors(t, n, device):
    import torch

    parts = [t(n // 256 // 64) for _ in range(64)] + [t(n // 64) for _ in range(32)]
    others = [torch.randn_like(p) for p in parts]
    calls = {
        "_foreach_add": lambda: torch._foreach_add(parts, others),
        "_foreach_mul_ by a number": lambda: torch._foreach_mul_(parts, 1.0),
        "_foreach_sqrt": lambda: torch._foreach_sqrt(parts),
        "_foreach_norm": lambda: torch._foreach_norm(parts),
        "_foreach_addcdiv_": lambda: torch._foreach_addcdiv_(parts, others, others, 0.0),
    }
    for name in ("SGD", "Adam", "AdamW", "Adagrad"):
        weights = [p.clone().requires_grad_() for p in parts]
        for weight, gradient in zip(weights, others, strict=True):
            weight.grad = gradient
        calls[f"{name}, fused"] = getattr(torch.optim, name)(weights, lr=1e-4, fused=True).step
    return calls


def transforms(t, n, device):
    import torch

    x, rows, squares = t(n), t(n // 1024, 1024), t(max(1, n // 512**2), 512, 512)
    prime = t(n // 1024, 1009)
    spectrum = torch.fft.rfft(rows)
    return {
        "fft of rows of 1024": lambda: torch.fft.fft(rows),
        "rfft of rows of 1024": lambda: torch.fft.rfft(rows),
        "irfft of rows of 1024": lambda: torch.fft.irfft(spectrum),
        "fft of one row": lambda: torch.fft.fft(x),
        "fft2 of 512 x 512": lambda: torch.fft.fft2(squares),
        "fft of rows of 1009 (prime)": lambda: torch.fft.fft(prime),
    }


def linear_algebra(t, n, device):
    import torch

    many = t(n // 128**2, 128, 128)
    positive = many @ many.mT + 128 * torch.eye(128, device=device)
    one = t(1024, 1024)
    large = one @ one.T + 1024 * torch.eye(1024, device=device)
    right = t(n // 128**2, 128, 16)
    lower = torch.linalg.cholesky(positive)
    return {
        "cholesky of 128 x 128": lambda: torch.linalg.cholesky(positive),
        "cholesky of 1024 x 1024": lambda: torch.linalg.cholesky(large),
        "lu_factor of 128 x 128": lambda: torch.linalg.lu_factor(positive),
        "solve of 128 x 128": lambda: torch.linalg.solve(positive, right),
        "solve_triangular of 128 x 128": lambda: torch.linalg.solve_triangular(lower, right, upper=False),
        "inv of 128 x 128": lambda: torch.linalg.inv(positive),
        "det of 128 x 128": lambda: torch.linalg.det(positive),
        "cdist": lambda: torch.cdist(many[0], many[1]),
    }


FAMILIES = (
    pointwise,
    reduction,
    scan_and_sort,
    indexing,
    norm,
    image,
    randomness,
    many_tensors,
    transforms,
    linear_algebra,
)


def measure(device):
    import torch

    figures = {}
    n = elements(device)
    only = re.compile(os.environ.get("ANYMPS_BENCHMARK_ONLY", ""))
    for family in FAMILIES:
        with torch.no_grad():
            torch.manual_seed(0)
            calls = family(lambda *shape: torch.randn(*shape).to(device), n, device)
            for name, call in calls.items():
                if not only.search(f"{family.__name__}: {name}"):
                    continue
                try:
                    first = peer.median_seconds(call, device, inner=1, repeats=1)
                except RuntimeError:
                    if device == "mps":
                        raise
                    continue  # CUDA has no fused Adagrad, for one
                inner = max(1, min(20, int(0.02 / first)))
                seconds = peer.median_seconds(call, device, inner=inner, repeats=5 if first < 0.1 else 1)
                figures[f"{family.__name__}: {name}"] = seconds * 1e6
    return figures


if __name__ == "__main__":
    peer.run(measure, "us", "Families of operators", below=0.5)
