"""Random graphs, compiled for mps, beside what the CPU gives without compilation.

25 by default; `make soak` runs 2,000 (--compiled-graphs). A failure names its seed; --random-seed starts there.
"""

from __future__ import annotations

import torch
from random_graphs import difference, random_graph

BLOCK = 5  # graphs of one test


def pytest_generate_tests(metafunc):
    if "seeds" in metafunc.fixturenames:
        first, count = (metafunc.config.getoption(name) for name in ("--random-seed", "--compiled-graphs"))
        blocks = [range(s, min(s + BLOCK, first + count)) for s in range(first, first + count, BLOCK)]
        metafunc.parametrize("seeds", blocks)


def differences(graph, run) -> list[str]:
    """What another way to run a graph gives that it may not, or its error."""
    arguments = [a.clone(memory_format=torch.preserve_format).to("mps") for a in graph.arguments]
    try:
        results = run(*arguments)
        found = [difference(value, result) for value, result in zip(graph.results, results, strict=True)]
    except Exception as error:
        found = [f"{type(error).__name__}: {str(error)[:500]}"]
    return [text for text in found if text]


def test_random_graphs(seeds, mps):
    problems = []
    for seed in seeds:
        graph = random_graph(seed)
        if not graph.results:
            continue
        torch._dynamo.reset()
        eager = differences(graph, graph.function)
        compiled = differences(graph, torch.compile(graph.function, dynamic=graph.dynamic, fullgraph=True))
        if eager or compiled:
            inputs = [f"{a.dtype} {tuple(a.shape)} {a.stride()}" for a in graph.arguments]
            lines = [f"seed {seed}, dynamic={graph.dynamic}", graph.source, *inputs]
            problems.append("\n".join([*lines, f"eager: {eager}", f"compiled: {compiled}"]))
    assert not problems, "\n\n".join(problems)


def test_graphs_hold_what_they_should(mps):
    """Most graphs have several steps, and all kinds of steps are drawn."""
    graphs = [random_graph(seed) for seed in range(100)]
    assert sum(len(graph.lines) >= 3 for graph in graphs) >= 90
    text = "\n".join(line for graph in graphs for line in graph.lines)
    for part in ("torch.where", ".sum(", ".transpose(", ".gather(", ".to(torch.", "torch.cat", "argm", " @ "):
        assert part in text
