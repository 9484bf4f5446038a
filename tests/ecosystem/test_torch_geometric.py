"""PyTorch Geometric: convolutions over edge lists and sparse adjacency, batches of graphs, and loops of neighbours."""

import pytest
import torch
from torch import nn

from . import agree, library, train

geometric = library("torch_geometric")
convolutions = library("torch_geometric.nn")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")
NODES, EDGES = 20, 60
LAYERS = {
    "gcn": lambda: convolutions.GCNConv(8, 8),
    "sage": lambda: convolutions.SAGEConv(8, 8),
    "gat": lambda: convolutions.GATv2Conv(8, 4, heads=2),
    "gin": lambda: convolutions.GINConv(nn.Linear(8, 8)),
    "transformer": lambda: convolutions.TransformerConv(8, 4, heads=2),
    "pna": lambda: convolutions.PNAConv(8, 8, ["mean", "max", "std"], ["identity", "amplification"], torch.arange(6)),
}


def graph():
    torch.manual_seed(0)
    return torch.randn(NODES, 8), torch.randint(0, NODES, (2, EDGES)), torch.randint(0, 8, (NODES,))


@pytest.mark.parametrize("name", LAYERS)
def test_trains(name):
    x, edges, labels = graph()

    def loss_of(model):
        device = next(model.parameters()).device
        return nn.functional.cross_entropy(model(x.to(device), edges.to(device)), labels.to(device))

    agree(lambda device: train(LAYERS[name](), loss_of, device))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_adjacency(layout):
    x, edges, labels = graph()
    adjacency = geometric.utils.to_torch_sparse_tensor(edges.unique(dim=1), size=(NODES, NODES), layout=layout)

    def loss_of(model):
        device = next(model.parameters()).device
        return nn.functional.cross_entropy(model(x.to(device), adjacency.to(device)), labels.to(device))

    agree(lambda device: train(convolutions.SAGEConv(8, 8), loss_of, device))


def test_batches_of_graphs():
    graphs = [geometric.data.Data(x=graph()[0], edge_index=graph()[1]) for _ in range(3)]
    batch = next(iter(library("torch_geometric.loader").DataLoader(graphs, batch_size=3)))

    def run(device):
        on_device = batch.to(device)
        mean = convolutions.global_mean_pool(on_device.x, on_device.batch)
        dense, mask = geometric.utils.to_dense_batch(on_device.x, on_device.batch)
        return mean, convolutions.global_max_pool(on_device.x, on_device.batch), dense, mask

    agree(run, tolerance=1e-5)
