"""Rows by index and broadcasts, as graph networks have them: GB/s of the bytes that must move, and the peer's.

A million edges between 100,000 nodes in no order; of "power law" most edges end in few nodes, and "to 128 graphs" all
rows do, as where nodes are pooled. Features are 64 to 256 wide. What must move: each index, each row that is read or
written, and the nodes' features once; of sorted and coalesced edges what is given and what results. "(atomics)" rows
are too few or too narrow for sorted sums. A hundredth of all where a CPU computes. --only REGEX measures some rows.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

NODES, EDGES, GRAPHS = 100_000, 1_000_000, 128


def graph_calls(device, dtype, width, part):
    import torch

    nodes, edges, e = NODES // part, EDGES // part, dtype.itemsize
    # On the device: clocks fall while a host draws a quarter of a billion numbers.
    index = torch.randint(nodes, (edges,), device=device)
    skewed = (nodes * torch.rand(edges, device=device).pow(4)).long()
    x = torch.randn(nodes, width, dtype=dtype, device=device)
    rows = torch.randn(edges, width, dtype=dtype, device=device)
    wide = index[:, None].expand(-1, width)
    copied = 8 * edges + 2 * e * edges * width
    reduced = 8 * edges + e * edges * width + 2 * e * nodes * width
    yield "index_select", lambda: x.index_select(0, index), copied
    yield "x[index]", lambda: x[index], copied
    yield "gather", lambda: x.gather(0, wide), copied
    yield "index_add", lambda: x.index_add(0, index, rows), reduced
    yield "index_add, power law", lambda: x.index_add(0, skewed, rows), reduced
    yield "index_put, accumulating", lambda: x.index_put((index,), rows, accumulate=True), reduced
    for how in ("mean", "amax"):
        call = lambda how=how: x.scatter_reduce(0, wide, rows, how, include_self=False)  # noqa: E731
        yield f"scatter_reduce {how}", call, reduced
    in_place = x.clone()
    yield "index_add_", lambda: in_place.index_add_(0, index, rows, alpha=1e-6), reduced
    graph = torch.randint(GRAPHS, (edges,), device=device)
    graphs = torch.zeros(GRAPHS, width, dtype=dtype, device=device)
    pooled = 8 * edges + e * edges * width + 2 * e * GRAPHS * width
    yield f"index_add_ to {GRAPHS} graphs", lambda: graphs.index_add_(0, graph, rows, alpha=1e-6), pooled
    yield f"index_add_ to {GRAPHS} graphs, sorted", graphs_in_order(graphs, graph, rows), pooled
    if dtype == torch.float32:  # CUDA has no other
        lengths = torch.bincount(index, minlength=nodes)
        for how in ("sum", "mean", "max"):
            call = lambda how=how: torch.segment_reduce(rows, how, lengths=lengths, unsafe=True)  # noqa: E731
            yield f"segment_reduce {how}", call, 8 * nodes + e * (edges + nodes) * width
    if width == 64:
        few = edges // 20
        yield (
            "index_add (atomics)",
            lambda: x.index_add(0, index[:few], rows[:few]),
            8 * few + e * few * width + 2 * e * nodes * width,
        )
        ones = torch.ones(edges, dtype=dtype, device=device)
        degrees = torch.zeros(nodes, dtype=dtype, device=device)
        yield "index_add of numbers (atomics)", lambda: degrees.index_add(0, index, ones), (8 + e) * edges


def graphs_in_order(graphs, graph, rows):
    index = graph.sort()[0]
    return lambda: graphs.index_add_(0, index, rows, alpha=1e-6)


def edge_calls(device, part):
    import torch

    nodes, edges = NODES // part, EDGES // part
    source, target = torch.randint(nodes, (2, edges), device=device)
    pair = torch.stack([source, target])
    weights = torch.rand(edges, device=device)
    matrix = lambda: torch.sparse_coo_tensor(pair, weights, (nodes, nodes), check_invariants=False)  # noqa: E731
    yield "sort of edges' targets", lambda: target.sort(), 24 * edges
    yield "stable argsort of edges' targets", lambda: target.argsort(stable=True), 16 * edges
    yield "sort of edges as source * nodes + target", lambda: (source * nodes + target).sort(), 32 * edges
    yield "edges in the order of their targets", lambda: pair[:, target.argsort(stable=True)], 32 * edges
    yield "unique edges", lambda: pair.unique(dim=1), 32 * edges
    yield "coalesce", lambda: matrix().coalesce(), 40 * edges
    yield "degrees by bincount", lambda: torch.bincount(target, minlength=nodes), 8 * edges + 8 * nodes


def broadcast_calls(device, dtype, part):
    import torch

    e = dtype.itemsize
    for shape, other in (
        ((EDGES, 128), (EDGES, 1)),
        ((64, 56, 56, 96), (96,)),
        ((64, 256, 56, 56), (256, 1, 1)),
        ((256, 512, 7, 7), (512, 1, 1)),
    ):
        full = (max(1, shape[0] // part), *shape[1:])
        a = torch.randn(full, dtype=dtype, device=device)
        b = torch.randn((full[0], 1) if other[0] == EDGES else other, dtype=dtype, device=device)
        moved = e * (2 * a.numel() + b.numel())
        yield f"{list(shape)} * {list(other)}", lambda a=a, b=b: a * b, moved
        if other[0] == EDGES:
            yield f"{list(shape)} == {list(other)}", lambda a=a, b=b: a == b, (e + 1) * a.numel()
    q = torch.randn((8, max(1, 1024 // part), 32, 128), dtype=dtype, device=device).transpose(1, 2)
    angle = torch.randn(q.shape[2:], dtype=dtype, device=device)
    yield "rope: (8, 32, 1024, 128) of (8, 1024, 32, 128) * (1024, 128)", lambda: q * angle, 2 * e * q.numel()


def measure(device):
    import torch

    only = re.compile(os.environ.get("ANYMPS_BENCHMARK_ONLY", ""))
    part = 100 if device == "cpu" or "llvmpipe" in peer.device_name(device) else 1
    figures = {}

    def measure_all(calls, suffix):
        for what, call, moved in calls:
            name = f"{what}, {suffix}"
            if only.search(name):
                inner = peer.stream_length(call, device)
                figures[name] = moved / peer.median_seconds(call, device, inner=inner) / 1e9

    measure_all(edge_calls(device, part), "int64")
    for dtype in (torch.float32, torch.bfloat16):
        groups = [broadcast_calls(device, dtype, part)]
        groups += [graph_calls(device, dtype, width, part) for width in (64, 128, 256)]
        for width, calls in zip(("", "64 ", "128 ", "256 "), groups):
            measure_all(calls, f"{width}{str(dtype)[6:]}")
    return figures


if __name__ == "__main__":
    peer.run(measure, "GB/s", "Rows by index and broadcasts", higher_is_better=True, below=0.9)
