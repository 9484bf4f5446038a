"""The longest dispatches of operators on large tensors, launched on a device that runs nothing, by the estimate that
dispatches are split by (runtime/dispatch_time.h).

    ANYMPS_LOG=dispatch ANYMPS_SUBMISSION_SECONDS=0 python longest_dispatches.py [--elements 28] [NAME ...]

Launched are the calls of benchmarks/runtime/longest_dispatch.py and PyTorch's samples of operators (op_db), which are
scaled: one size of a sample's largest tensor grows wherever it stands, in the other tensors and among numbers, too, and
then the size of one dimension alone. What an operator refuses is left out, and where its result does not fit, tensors
are smaller. Values mean nothing, so that what follows a count of them is not seen. With names only these operators or
calls are launched. Prints JSON: {"launched": count of operators and calls, "small": [name of what launched nothing that
takes 0.1 ms], "dispatches": [[seconds of the longest part, of all parts, parts, kernel, grid, call], longest first]}.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from op_db_compare import map_tensors, tensors_in
from op_db_support import OPS, copied

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "runtime"))
import longest_dispatch  # noqa: E402

SAMPLES, CALLS = 8, 24  # of an operator, at most
LEAST, MOST = 1e-4, 400.0  # seconds of a dispatch: what takes longer computes for minutes, in any number of parts
KEPT = 300
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)  # the first that an operator takes
# Work of the host that grows with a size: copies to it, LAPACK, and PyTorch's own loops over slices or chunks.
HOST = re.compile(
    r"to$|(unsafe_|[hvd]|tensor_)?split|(unsafe_)?chunk|unbind|linalg\.|lu|qr$|geqrf|ormqr|svd|pca_lowrank|pinverse|"
    r"logdet|lobpcg|cholesky_inverse|norm-nuc|sparse\.|nn\.functional\.(bilinear|linear_cross_entropy-chunked|ctc_loss)"
)
DISPATCH = re.compile(
    r"ANYMPS_LOG dispatch: (\S+), grid (.*), \d+ bytes of arguments, (\d+) us on a slow device(?:, in (\d+) parts)?$"
)
DEVICE = torch.device("mps")


class Log:
    """What the library writes to stderr from now on."""

    def __init__(self):
        descriptor, path = tempfile.mkstemp()
        os.dup2(descriptor, 2)
        self.file = open(path, errors="replace")  # noqa: SIM115
        os.unlink(path)

    def dispatches(self):
        """(kernel, grid, seconds, parts) of each since the last call."""
        for found in filter(None, map(DISPATCH.match, self.file.read().splitlines())):
            yield found[1], found[2], int(found[3]) / 1e6, int(found[4] or 1)


def resized(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """As `tensor` in type and order of dimensions, with another shape and no values."""
    if shape == list(tensor.shape) or tensor.layout != torch.strided:
        return copied(tensor, DEVICE)
    expanded = [stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    result = torch.empty([1 if expanded[d] else shape[d] for d in order], dtype=tensor.dtype, device=DEVICE)
    result = result.permute([order.index(d) for d in range(tensor.dim())]).expand(shape)
    return result.requires_grad_(tensor.requires_grad)


def map_numbers(value, function):
    """The same structure with every integer replaced."""
    if isinstance(value, dict):
        return {k: map_numbers(v, function) for k, v in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map_numbers(v, function) for v in value)
    return function(value) if type(value) is int else value


def larger(call, elements: int):
    """(what grows, function that makes the arguments) of each way to give the largest tensor of a call `elements`."""
    largest = max(tensors_in(call), key=torch.Tensor.numel, default=None)
    if largest is None or largest.numel() == 0 or largest.layout != torch.strided:
        return
    shape = list(largest.shape)
    for size in dict.fromkeys(shape):
        grown = int(size * (elements / largest.numel()) ** (1 / shape.count(size)))
        grow = lambda t, n=size, to=grown: resized(t, [to if s == n else s for s in t.shape])  # noqa: E731
        numbers = map_numbers(call, lambda s, n=size, to=grown: to if s == n > 1 else s)
        if map_tensors(numbers, lambda t: None) != map_tensors(call, lambda t: None):
            yield f"{size} -> {grown}, numbers, too", lambda v=numbers, f=grow: map_tensors(v, f)
        yield f"{size} -> {grown}", lambda f=grow: map_tensors(call, f)
    for d in range(1, len(shape) + 1) if len(set(shape)) < len(shape) else ():
        size, grown = shape[-d], shape[-d] * (elements // largest.numel())

        def alone(t, d=d, size=size, grown=grown):
            return resized(t, [grown if t.dim() - i == d and s == size else s for i, s in enumerate(t.shape)])

        yield f"dimension {-d}: {size} -> {grown}", lambda f=alone: map_tensors(call, f)


def distinct_samples(op, dtype):
    """Some samples of an operator whose numbers or tensors' dimensions and layouts differ."""
    seen, gradients = set(), op.supports_autograd and dtype.is_floating_point
    for sample in itertools.islice(op.sample_inputs(torch.device("cpu"), dtype, requires_grad=gradients), 100):
        call = (sample.input, tuple(sample.args), dict(sample.kwargs))
        if all(t.numel() < 2 for t in tensors_in(call)):
            continue  # nothing can grow
        form = repr(map_tensors(call, lambda t: (t.dim(), t.dtype, t.layout, t.is_contiguous())))
        if form not in seen:
            seen.add(form)
            yield call
        if len(seen) == SAMPLES:
            return


def run(op, arguments) -> None:
    """Forward and backward."""
    value, args, kwargs = arguments
    named = {torch.float64: torch.float32}
    kwargs = {k: DEVICE if k == "device" else named.get(v, v) if isinstance(v, torch.dtype) else v
              for k, v in kwargs.items()}  # fmt: skip
    results = [t for t in tensors_in(op(value, *args, **kwargs)) if t.requires_grad]
    if results:
        leaves = [t for t in tensors_in(arguments) if t.requires_grad]
        torch.autograd.grad(results, leaves, [torch.empty_like(t) for t in results], allow_unused=True)


class Launches:
    """The longest dispatches of all that was tried."""

    def __init__(self, elements: int):
        self.elements, self.log, self.found, self.launched, self.small = elements, Log(), {}, 0, []

    def attempt(self, name: str, how: str, function) -> bool:
        """Whether the call succeeds; what it launches counts anyhow."""
        done = False
        try:
            function()
            torch.mps.synchronize()
            done = True
        except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, OverflowError, AssertionError):
            pass  # sizes that do not fit each other, or the device
        for kernel, grid, seconds, parts in self.log.dispatches():
            row = (seconds / parts, seconds, parts, kernel, grid, f"{name}: {how}")
            if LEAST < seconds < MOST:
                self.found[name, kernel] = max(row, self.found.get((name, kernel), row))
        torch.mps.empty_cache()
        return done

    def count(self, name: str) -> None:
        self.launched += 1
        if not any(key[0] == name for key in self.found):
            self.small.append(name)

    def operator(self, name: str) -> None:
        op, calls = OPS[name], 0
        dtype = next((t for t in DTYPES if t in op.supported_dtypes("cpu")), torch.float32)
        for call in distinct_samples(op, dtype):
            for limit in (self.elements, self.elements - 8, self.elements - 14):
                fits = False
                for text, make in itertools.islice(larger(call, 1 << limit), max(0, CALLS - calls)):
                    calls += limit == self.elements
                    fits |= self.attempt(name, text, lambda m=make: run(op, m()))
                if fits:
                    break
        self.count(name)

    def case(self, name: str, prepare) -> None:
        self.attempt(name, f"2^{self.elements}", lambda: prepare(self.elements)())
        self.count(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=28, help="log2 of the largest tensor's (28)")
    parser.add_argument("--cases", type=int, default=1, help="0: no calls of benchmarks/")
    parser.add_argument("--every", type=int, default=1, help="launch every so many of the operators (1); 0: none")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    launches = Launches(options.elements)
    cases = longest_dispatch.cases(torch, DEVICE)
    operators = [name for name in OPS if not HOST.match(name)][:: options.every] if options.every else []
    every = [(launches.case, name, prepare) for name, prepare in cases.items() if options.cases]
    every += [(launches.operator, name) for name in operators]
    for launch, name, *more in every:
        if name in options.names or not options.names:
            print(name, flush=True)  # for who reads the end of it after a crash
            launch(name, *more)
    rows = sorted(launches.found.values(), reverse=True)
    print(json.dumps({"launched": launches.launched, "small": launches.small, "dispatches": rows[:KEPT]}))


if __name__ == "__main__":
    main()
