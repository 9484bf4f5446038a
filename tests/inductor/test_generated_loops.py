"""Loops that generated kernels get on GPUs alone, in text: which way threads go, and what they load at once."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_anymps.inductor.access import _of_four
from torch_anymps.inductor.choices import even_split


@pytest.fixture
def graph():
    graph = torch.fx.Graph()
    graph.output(())
    with V.set_graph_handler(GraphLowering(torch.fx.GraphModule(torch.nn.Module(), graph))):
        yield


def step(index, m):
    four = _of_four(index, [m])
    return None if four is None else sympy.expand(four.subs(m, m + 1) - four)


def test_neighbours_behind_quotients_and_remainders(graph):
    m, x = sympy.Symbol("m", integer=True, nonnegative=True), sympy.Symbol("x", integer=True, nonnegative=True)
    base = m + 7168 * x
    rows = 28 * ModularIndexing(base, 28, 28) + 784 * FloorDiv(base, 784)
    assert step(rows + ModularIndexing(m, 1, 28), m) == 1  # the block of a split reduction of planes
    assert step(rows, m) == 0  # of a factor that all of a plane's row share
    assert step(ModularIndexing(m, 1, 30), m) is None  # a row ends among the four
    assert step(FloorDiv(m + 2, 4), m) is None


def test_even_splits():
    assert even_split(12608, 99, 1) == 64
    assert even_split(100352, 13, 4) == 14  # lengths of 7168
    assert even_split(8191, 20, 4) == 20  # a prime has none
    for length, split in ((1 << 20, 33), (98 * 1000, 17)):
        found = even_split(length, split, 4)
        assert length % found == 0 and length // found % 4 == 0 and split / 2 <= found <= 2 * split
