"""Compiled functions beside their process: what its first graph is made of, and its streams."""

import torch

FIRST_GRAPH = """
import torch
from torch._inductor.utils import run_and_get_code
repeats, data = torch.tensor([2, 3], device="mps"), torch.arange(2, device="mps")
f = lambda repeats, data: data[torch.ops.aten.repeat_interleave.Tensor(repeats, output_size=9)]
result, codes = run_and_get_code(torch.compile(f), repeats, data)
print(result.tolist(), "aten.repeat_interleave.Tensor(" in codes[0])
"""


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
