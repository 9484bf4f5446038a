"""Compiled functions beside their process: what its first graph is made of, its streams, how results lie."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees

FIRST_GRAPH = """
import torch
from torch._inductor.utils import run_and_get_code
repeats, data = torch.tensor([2, 3], device="mps"), torch.arange(2, device="mps")
f = lambda repeats, data: data[torch.ops.aten.repeat_interleave.Tensor(repeats, output_size=9)]
result, codes = run_and_get_code(torch.compile(f), repeats, data)
print(result.tolist(), "aten.repeat_interleave.Tensor(" in codes[0])
"""

IMPORTED = """
import sys, torch
names = ("torch._dynamo", "torch._inductor", "torch_anymps.inductor", "slangpy")
loaded = lambda: [name for name in names if any(m == name or m.startswith(name + ".") for m in sys.modules)]
print(loaded())
x = torch.ones(2, device="mps")
print((x + 1).tolist(), loaded())
print(torch.compile(lambda x: x.exp() + 1)(x).shape, loaded())
"""


def test_what_is_imported_when(mps, run_python):
    """Programs that compile nothing pay for nothing, and the package of the Slang compiler is never imported."""
    done = run_python(IMPORTED)
    compiler = ["torch._dynamo", "torch._inductor", "torch_anymps.inductor"]
    assert done.stdout.splitlines() == ["[]", "[2.0, 2.0] []", f"torch.Size([2]) {compiler}"], done.stderr


def test_the_first_graph_is_traced_with_our_decompositions(mps, run_python):
    done = run_python(FIRST_GRAPH)
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 1, 1, 1, 1, 1, 1, 1] False"], done.stderr


def test_streams_in_compiled_functions():
    stream = torch.mps.Stream()

    @torch.compiler.disable
    def hook(x):  # as FSDP's, which compiled models run as they are
        stream.wait_stream(torch.mps.current_stream())
        return x

    def compute(x):
        current = torch.mps.current_stream()
        stream.wait_stream(current)
        with torch.mps.stream(stream):
            x = hook(x * 2)
        current.wait_stream(stream)
        current.wait_event(stream.record_event())
        return x + 1

    x = torch.arange(4.0, device="mps")
    assert torch.compile(compute, backend="eager")(x).tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("dims", (2, 3))
@pytest.mark.parametrize("mode", (torch.enable_grad, torch.inference_mode))
def test_group_norm_keeps_channels_last(mps, mode, dims):
    """Dynamo asks fake tensors how a result lies, of which branches may depend."""
    last = {2: torch.channels_last, 3: torch.channels_last_3d}[dims]

    @mode()
    def function(x, weight):
        y = F.group_norm(x, 4, weight, weight)
        return y, y * 2 if y.is_contiguous(memory_format=last) else -y, F.group_norm(x.contiguous(), 2)

    x, weight = torch.randn(2, 8, *[3, 4, 5][:dims]).to(memory_format=last), torch.randn(8)
    compiled_agrees(function, x, weight)
    x, weight = x.to(mps), weight.to(mps)
    torch._dynamo.reset()
    for got, want in zip(torch.compile(function)(x, weight), function(x, weight), strict=True):
        assert got.stride() == want.stride()
