"""Networks of tables, of clicks, of graphs, of points and of series."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .task import Block, Task, classify


def mlp(inputs: int, *widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = []
    for a, b in zip((inputs, *widths), widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_mlp(tiny: bool) -> Task:
    """784, 64, 64, 10 on 64 images of digits: what a step costs the host."""
    width = 8 if tiny else 64
    return Task(mlp(784, width, width, 10), (torch.randn(64, 784), torch.randint(0, 10, (64,))), classify)


def click_loss(model, *batch):
    """Binary cross entropy; the last of the batch is whether there was a click, (N,)."""
    *inputs, clicks = batch
    return F.binary_cross_entropy_with_logits(model(*inputs).float(), clicks)


class FtTransformer(nn.Module):
    """Gorishniy et al., 2021: a token for each column, one for the class."""

    def __init__(self, numbers: int, kinds: int, values: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(0.1 * torch.randn(numbers, width)) for _ in range(2))
        self.table = nn.Embedding(kinds * values, width)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.register_buffer("offsets", torch.arange(kinds) * values)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout=0.1, hidden=width * 4 // 3) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers, kinds):
        tokens = [self.token.expand(len(numbers), -1, -1), numbers[..., None] * self.weight + self.bias]
        x = self.blocks(torch.cat([*tokens, self.table(kinds + self.offsets)], 1))
        return self.head(x[:, 0])[:, 0]


def ft_transformer(tiny: bool) -> Task:
    """3 layers of 192 on 1,024 rows of 28 numbers and 8 categories."""
    rows, numbers, kinds, values = (4, 3, 2, 5) if tiny else (1024, 28, 8, 100)
    model = FtTransformer(numbers, kinds, values, *((16, 2, 1) if tiny else (192, 8, 3)))
    batch = torch.randn(rows, numbers), torch.randint(0, values, (rows, kinds)), torch.randint(0, 2, (rows,)).float()
    return Task(model, batch, click_loss)


class DeepFm(nn.Module):
    """Guo et al., 2017: a factorization machine and an MLP on the same embeddings."""

    def __init__(self, fields: int, values: int, width: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(fields * values, 1), nn.Embedding(fields * values, width)
        nn.init.normal_(self.second.weight, std=0.01)
        self.register_buffer("offsets", torch.arange(fields) * values)
        self.deep = mlp(fields * width, *hidden, 1)

    def forward(self, fields):
        places = fields + self.offsets
        x = self.second(places)
        pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1)
        return self.first(places).sum((1, 2)) + pairs + self.deep(x.flatten(1))[:, 0]


def deepfm(tiny: bool) -> Task:
    """4,096 clicks of 39 fields with 20,000 values each."""
    rows, fields, values = (8, 3, 10) if tiny else (4096, 39, 20000)
    model = DeepFm(fields, values, *((4, (8,)) if tiny else (16, (400, 400, 400))))
    return Task(model, (torch.randint(0, values, (rows, fields)), torch.randint(0, 2, (rows,)).float()), click_loss)


class Dlrm(nn.Module):
    """Naumov et al., 2019: bags of embeddings, products of all pairs."""

    def __init__(self, tables: int, values: int, width: int, bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(values, width, mode="sum") for _ in range(tables))
        self.bottom = mlp(13, *bottom, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("rows", pairs[0])
        self.register_buffer("columns", pairs[1])
        self.top = mlp(width + pairs.shape[1], *top, 1)

    def forward(self, numbers, values, starts):
        dense = F.relu(self.bottom(numbers))
        found = [dense, *(bag(v, starts).to(dense.dtype) for bag, v in zip(self.bags, values))]
        x = torch.stack(found, 1)
        pairs = torch.bmm(x, x.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat([dense, pairs], 1))[:, 0]


def dlrm(tiny: bool) -> Task:
    """2,048 clicks, 26 tables of 40,000 x 64, 4 values a bag, SGD."""
    rows, tables, values, bag = (4, 2, 10, 2) if tiny else (2048, 26, 40000, 4)
    model = Dlrm(tables, values, *((4, (8,), (8,)) if tiny else (64, (512, 256), (1024, 1024, 512, 256))))
    starts = torch.arange(0, rows * bag, bag)
    batch = torch.randn(rows, 13), torch.randint(0, values, (tables, rows * bag)), starts
    return Task(model, (*batch, torch.randint(0, 2, (rows,)).float()), click_loss, "sgd")


def graph(tiny: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Features (nodes, inputs), edges (2, E) with one from each node to itself, classes of nodes, and their number."""
    nodes, edges, inputs, classes = (20, 60, 8, 3) if tiny else (100_000, 900_000, 128, 40)
    ends = torch.cat([torch.randint(0, nodes, (2, edges)), torch.arange(nodes).expand(2, -1)], 1)
    return torch.randn(nodes, inputs), ends, torch.randint(0, classes, (nodes,)), classes


def degrees(ends: torch.Tensor, nodes: int) -> torch.Tensor:
    """How many edges end in each node."""
    ones = torch.ones(ends.shape[1], device=ends.device)
    return torch.zeros(nodes, device=ends.device).index_add(0, ends[1], ones)


class GcnLayer(nn.Module):
    """Kipf and Welling, 2016: sums of neighbours, weighted with both degrees."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x, ends):
        x, weight = self.linear(x), degrees(ends, len(x)).rsqrt()
        messages = x[ends[0]] * (weight[ends[0]] * weight[ends[1]])[:, None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, ends[1], messages)


class SageLayer(nn.Module):
    """Hamilton et al., 2017: a node's own features and the mean of its neighbours'."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, ends):
        total = torch.zeros_like(x).index_add(0, ends[1], x[ends[0]])
        return self.own(x) + self.others(total / degrees(ends, len(x))[:, None].to(x.dtype))


class GatLayer(nn.Module):
    """Velickovic et al., 2017: softmax over the edges that end in a node, with 4 heads."""

    HEADS = 4

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.size = (outputs + self.HEADS - 1) // self.HEADS
        self.linear = nn.Linear(inputs, self.HEADS * self.size, bias=False)
        self.source, self.target = (nn.Parameter(0.1 * torch.randn(self.HEADS, self.size)) for _ in range(2))
        self.outputs = outputs

    def forward(self, x, ends):
        x = self.linear(x).unflatten(1, (self.HEADS, self.size))
        scores = [(x * side).sum(-1).float()[end] for side, end in zip((self.source, self.target), ends)]
        scores = F.leaky_relu(scores[0] + scores[1], 0.2)
        place = ends[1][:, None].expand_as(scores)
        lowest = torch.full((len(x), self.HEADS), float("-inf"), device=x.device)
        most = lowest.scatter_reduce(0, place, scores.detach(), "amax")
        weights = (scores - most[ends[1]]).exp()
        total = torch.zeros_like(lowest).index_add(0, ends[1], weights)
        weights = (weights / total[ends[1]])[..., None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, ends[1], x[ends[0]] * weights).flatten(1)[:, : self.outputs]


class GraphNetwork(nn.Module):
    def __init__(self, layer, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.dropout = 0.5
        self.layers = nn.ModuleList([layer(inputs, width), layer(width, width), layer(width, classes)])

    def forward(self, x, ends):
        for i, layer in enumerate(self.layers):
            x = layer(F.dropout(F.relu(x), self.dropout, self.training) if i else x, ends)
        return x


def graph_task(layer, tiny: bool) -> Task:
    """3 layers of 256 over 100,000 nodes and 1,000,000 edges, classes of all nodes."""
    x, ends, labels, classes = graph(tiny)
    model = GraphNetwork(layer, x.shape[1], 16 if tiny else 256, classes)
    return Task(model, (x, ends, labels), lambda m, x, ends, labels: F.cross_entropy(m(x, ends).float(), labels))


def gcn(tiny: bool) -> Task:
    return graph_task(GcnLayer, tiny)


def graph_sage(tiny: bool) -> Task:
    return graph_task(SageLayer, tiny)


def gat(tiny: bool) -> Task:
    return graph_task(GatLayer, tiny)


class PointNet(nn.Module):
    """Qi et al., 2016, without transforms: an MLP of each point, the maximum over them."""

    def __init__(self, widths: tuple[int, ...], hidden: int, classes: int) -> None:
        super().__init__()
        layers = []
        for a, b in zip((3, *widths), widths):
            layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(inplace=True)]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(widths[-1], hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.last = nn.Sequential(nn.Dropout(0.3), nn.Linear(hidden, classes))

    def forward(self, points):
        return self.last(self.head(self.points(points).amax(-1)))


def pointnet(tiny: bool) -> Task:
    """32 clouds of 2,048 points, 40 classes."""
    count, points, classes = (4, 16, 3) if tiny else (32, 2048, 40)
    model = PointNet(*(((8, 16), 8) if tiny else ((64, 64, 64, 128, 1024), 512)), classes)
    return Task(model, (torch.randn(count, 3, points), torch.randint(0, classes, (count,))), classify)


class TcnBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.convs = nn.ModuleList(nn.Conv1d(n, outputs, 3, dilation=dilation) for n in (inputs, outputs))
        self.drop = nn.Dropout(0.2)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        y = x
        for conv in self.convs:
            y = self.drop(F.relu(conv(F.pad(y, (self.pad, 0)))))
        return F.relu(y + self.shortcut(x))


def tcn(tiny: bool) -> Task:
    """A temporal convolutional network (Bai et al., 2018) forecasts 64 series of 1,024 steps of 32 values."""
    count, length, values, width, levels = (2, 16, 2, 8, 2) if tiny else (64, 1024, 32, 128, 7)
    blocks = [TcnBlock(width if i else values, width, 1 << i) for i in range(levels)]
    model = nn.Sequential(*blocks, nn.Conv1d(width, values, 1))
    series = torch.randn(count, values, length + 1)
    return Task(model, (series,), lambda m, x: F.mse_loss(m(x[..., :-1]).float(), x[..., 1:]))
