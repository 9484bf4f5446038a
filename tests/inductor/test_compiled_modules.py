"""Generated modules: what a process's first graph is made of."""

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
