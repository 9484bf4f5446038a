"""The longest dispatches at 2^28 elements, as a slow integrated GPU would take them, from runs at small sizes.

    python benchmarks/runtime/longest_dispatch.py [--elements 28] [--bandwidth 25] [--rate 400] [--only REGEX]

Each call runs at two small sizes here, with the GPU's time, bytes and operations of each kernel; what they grow by from
one to the other is what they are taken to grow by on. "estimate" is what runtime/dispatch_time.h makes of it, by which
dispatches are split: the bytes at GB/s, or the operations that the launcher tells at GFLOP/s. "scaled" is the time here
(the best of three) by the ratio of a copy's bandwidth there and here, grown like bytes or operations: where it is far
above the estimate, the kernel may do work that its launcher does not tell, or this device computes slowly beside its
memory. Prints what takes longer than --seconds by the estimate, or than four times as long scaled.
"""

import argparse
import math
import re

SMALL = (16, 18)  # log2 of elements in the two runs
REPEATS = 3


# Shapes of about 2^n elements.
flat = lambda n: ((1 << n,),)
two = lambda n: ((1 << n,), (1 << n,))
rows = lambda n: ((1 << (n - 10), 1024),)
square = lambda n: ((1 << n // 2, 1 << (n - n // 2)),)
squares = lambda n: square(n) * 2
images = lambda n: ((1 << (n - 14), 16, 32, 32),)
net = lambda n: (*images(n), (16, 16, 3, 3))
batched = lambda n: ((1 << (n - 12), 64, 64),) * 2
heads = lambda n: ((1, 8, 1 << (n - 9), 64),) * 3


def cases(torch, device):
    """(name, function of log2(n) that prepares inputs of about 2^n elements and returns the call)."""

    def of(size, call, *dtypes):
        def prepare(n):
            shape = size(n)
            torch.manual_seed(0)
            inputs = [torch.rand(s, device=device) if d is None else d(s) for s, d in zip(shape, dtypes, strict=True)]
            return lambda: call(*inputs)

        return prepare

    return {**element_cases(torch, device, of), **image_cases(torch, of), **matrix_cases(torch, device, of)}


def element_cases(torch, device, of):
    F = torch.nn.functional
    index = lambda s: torch.randint(0, s[0], s, device=device)
    return {
        "copy": of(flat, torch.clone, None),
        "add": of(two, torch.add, None, None),
        "pow": of(two, torch.pow, None, None),
        "lgamma": of(flat, torch.lgamma, None),
        "digamma": of(flat, torch.digamma, None),
        "special_zeta": of(two, lambda x, y: torch.special.zeta(x + 1.5, y + 1), None, None),
        "igamma": of(two, torch.special.gammainc, None, None),
        "transposed copy": of(square, lambda x: x.t().contiguous(), None),
        "sum": of(flat, torch.sum, None),
        "sum of columns": of(rows, lambda x: x.sum(0), None),
        "var": of(flat, torch.var, None),
        "argmax": of(flat, torch.argmax, None),
        "softmax": of(rows, lambda x: x.softmax(1), None),
        "softmax of one row": of(flat, lambda x: x.softmax(0), None),
        "layer_norm": of(rows, lambda x: F.layer_norm(x, [1024]), None),
        "cumsum": of(flat, lambda x: x.cumsum(0), None),
        "cumsum of columns": of(square, lambda x: x.cumsum(0), None),
        "logcumsumexp": of(flat, lambda x: x.logcumsumexp(0), None),
        "sort": of(flat, torch.sort, None),
        "sort of rows": of(rows, lambda x: x.sort(1), None),
        "topk": of(flat, lambda x: x.topk(100), None),
        "kthvalue of rows": of(rows, lambda x: x.kthvalue(500, 1), None),
        "median": of(flat, torch.median, None),
        "unique": of(flat, torch.unique, index),
        "mode of rows": of(rows, lambda x: x.mode(1), None),
        "histc": of(flat, lambda x: torch.histc(x, 100), None),
        "bincount": of(flat, lambda x: torch.bincount(x % 1000), index),
        "searchsorted": of(two, lambda x, y: torch.searchsorted(x.sort()[0], y), None, None),
        "gather": of(two, lambda x, i: x.gather(0, i), None, index),
        "index_put, accumulated": of(two, lambda x, i: x.index_put((i,), x, accumulate=True), None, index),
        "scatter_add to one": of(flat, lambda x: x.new_zeros(1).scatter_add(0, torch.zeros_like(x).long(), x), None),
        "rows by index": of(rows, lambda x: x.index_select(0, index((x.shape[0],))), None),
        "rows added by index": of(rows, lambda x: torch.zeros_like(x).index_add(0, index((x.shape[0],)), x), None),
        "largest of rows by index": of(
            rows, lambda x: x.scatter_reduce(0, index((x.shape[0],))[:, None].expand_as(x), x, "amax"), None
        ),
        "embedding gradient": of(
            rows, lambda x: torch.ops.aten.embedding_dense_backward(x, index((x.shape[0],)), 1000, -1, False), None
        ),
        "masked_select": of(flat, lambda x: x[x > 0.5], None),
        "nonzero": of(flat, lambda x: (x > 0.5).nonzero(), None),
        "dropout": of(flat, lambda x: F.dropout(x, 0.5), None),
        "multinomial": of(rows, lambda x: x.multinomial(10), None),
        "fft": of(flat, torch.fft.fft, None),
        "fft of a prime": of(lambda n: (((1 << n) // 1009, 1009),), torch.fft.fft, None),
    }


def image_cases(torch, of):
    F = torch.nn.functional
    return {
        "max_pool2d": of(images, lambda x: F.max_pool2d(x, 3), None),
        "avg_pool2d, 15 x 15": of(images, lambda x: F.avg_pool2d(x, 15, 1), None),
        "interpolate, bicubic": of(images, lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), None),
        "interpolate, antialiased": of(
            images, lambda x: F.interpolate(x, size=(8, 8), mode="bilinear", antialias=True), None
        ),
        "unfold": of(images, lambda x: F.unfold(x, 3), None),
        "conv2d": of(net, lambda x, w: F.conv2d(x, w, padding=1), None, None),
        "conv2d, weight gradient": of(
            net, lambda x, w: torch.nn.grad.conv2d_weight(x, w.shape, x, padding=1), None, None
        ),
        "conv2d, depthwise": of(images, lambda x: F.conv2d(x, x.new_ones(16, 1, 7, 7), groups=16, padding=3), None),
        "conv2d, depthwise, channels last": of(
            images,
            lambda x: F.conv2d(x.to(memory_format=torch.channels_last), x.new_ones(16, 1, 7, 7), groups=16, padding=3),
            None,
        ),
        "conv2d, depthwise, 31 x 31": of(
            images, lambda x: F.conv2d(x, x.new_ones(16, 1, 31, 31), groups=16, padding=15), None
        ),
        "conv2d, depthwise, weight gradient": of(
            images, lambda x: torch.nn.grad.conv2d_weight(x, (16, 1, 7, 7), x, padding=3, groups=16), None
        ),
    }


def matrix_cases(torch, device, of):
    F = torch.nn.functional
    lstm = lambda x: torch.nn.LSTM(1024, 1024, device=device)(x)[0].sum().backward()
    return {
        "mm": of(squares, lambda x, y: x @ y.reshape(x.shape[1], -1), None, None),
        "mm, f16": of(squares, lambda x, y: x.half() @ y.half().reshape(x.shape[1], -1), None, None),
        "mm, int64": of(squares, lambda x, y: x.long() @ y.long().reshape(x.shape[1], -1), None, None),
        "mm and its epilogue": of(
            squares, lambda x, y: torch.ops.aten._addmm_activation(x[0, :1], x, y.reshape(x.shape[1], -1)), None, None
        ),
        "bmm": of(batched, torch.bmm, None, None),
        "mv": of(square, lambda x: x @ x[0], None),
        "attention": of(heads, F.scaled_dot_product_attention, None, None, None),
        "cdist": of(lambda n: ((1 << n // 2, 64),) * 2, torch.cdist, None, None),
        "cdist, p = 1": of(lambda n: ((1 << n // 2, 64),) * 2, lambda x, y: torch.cdist(x, y, p=1), None, None),
        "cholesky": of(square, lambda x: torch.linalg.cholesky(x @ x.t() + 1e4 * x.new_ones(len(x)).diag()), None),
        "triangular solve": of(
            square,
            lambda x: torch.linalg.solve_triangular((x + 99 * x.new_ones(len(x)).diag()).tril(), x, upper=False),
            None,
        ),
        "lstm and its gradients": of(lambda n: ((1 << (n - 16), 64, 1024),), lstm, None),
        "lstm": of(lambda n: ((1 << (n - 12), 64, 64),), lambda x: torch.nn.LSTM(64, 64, device=device)(x), None),
    }


def measure(torch, torch_anymps, prepare, n):
    """{kernel: (seconds, bytes, operations)} at 2^n elements."""
    call = prepare(n)
    call()
    torch.mps.synchronize()
    found = {}
    for _ in range(REPEATS):
        with torch_anymps.profile() as profile:
            call()
        largest = {}  # of each kernel the dispatch with the most bytes
        for kernel in profile.kernels:
            row = (kernel.seconds / kernel.calls, kernel.bytes, kernel.operations)
            largest[kernel.name] = max(largest.get(kernel.name, row), row, key=lambda r: r[1:])
        for name, row in largest.items():
            found[name] = min(found.get(name, row), row)
    return found


def growth(small, large, steps):
    """By what it grows in `steps` more steps like the one from small to large; at most with the elements' square."""
    most = 4.0 ** (SMALL[1] - SMALL[0])
    return min(max(large / small if small > 0 else 1.0, 1.0), most) ** steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=28, help="log2 of the elements (28)")
    parser.add_argument("--bandwidth", type=float, default=25, help="GB/s of the slow GPU (25)")
    parser.add_argument("--rate", type=float, default=400, help="GFLOP/s of the slow GPU (400)")
    parser.add_argument("--seconds", type=float, default=0.5, help="list dispatches that may take longer (0.5)")
    parser.add_argument("--only", default="", help="a regular expression of names")
    options = parser.parse_args()
    import torch

    import torch_anymps

    steps = (options.elements - SMALL[1]) / (SMALL[1] - SMALL[0])
    all_cases = cases(torch, torch.device("mps"))
    copies = measure(torch, torch_anymps, all_cases["copy"], 22)
    seconds, copied, _ = max(copies.values(), key=lambda row: row[1])
    slower = copied / seconds / (options.bandwidth * 1e9)  # this device's copy by the other's
    rows = []
    for name, prepare in all_cases.items():
        if not re.search(options.only, name):
            continue
        try:
            small, large = (measure(torch, torch_anymps, prepare, n) for n in SMALL)
        except (RuntimeError, NotImplementedError) as error:
            print(f"{name}: {str(error).splitlines()[0]}")
            continue
        for kernel, (seconds, moved, operations) in large.items():
            if kernel not in small:
                continue  # another one at the small size
            _, moved_before, operations_before = small[kernel]
            of_bytes = growth(moved_before, moved, steps)
            of_operations = growth(operations_before, operations, steps)
            gigabytes, work = moved * of_bytes / 1e9, operations * of_operations / 1e9
            estimate = max(gigabytes / options.bandwidth, work / options.rate)
            scaled = seconds * slower * max(of_bytes, of_operations)
            rows.append((estimate, scaled, gigabytes, work, f"{name}: {kernel}"))
    print(f"2^{options.elements} elements at {options.bandwidth:g} GB/s and {options.rate:g} GFLOP/s, extrapolated; a "
          f"copy here: {slower * options.bandwidth:.1f} GB/s")  # fmt: skip
    print(f"{'estimate':>9} {'scaled':>9} {'GB':>7} {'GFLOP':>9} parts  call: kernel")
    for estimate, scaled, gigabytes, work, name in sorted(rows, reverse=True):
        if estimate > options.seconds or scaled > 4 * options.seconds:
            parts = math.ceil(estimate / options.seconds)
            print(f"{estimate:8.2f}s {scaled:8.2f}s {gigabytes:7.2f} {work:9.0f} {parts:5}  {name}")


if __name__ == "__main__":
    main()
