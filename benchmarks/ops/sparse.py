"""Sparse matrices: milliseconds of a call with its host, and the peer's. A random graph of 100,000 nodes and a million
edges, features of 128 columns (a hundredth of both where a CPU computes)."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

NODES, EDGES, WIDTH = 100_000, 1_000_000, 128


def measure(device):
    import torch

    part = 100 if device == "cpu" or "llvmpipe" in peer.device_name(device) else 1
    nodes, edges = NODES // part, EDGES // part
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(nodes, (2, edges), generator=generator).to(device)
    values = torch.rand(edges, generator=generator).to(device)
    features = torch.rand(nodes, WIDTH, generator=generator).to(device)
    coo = torch.sparse_coo_tensor(indices, values, (nodes, nodes), check_invariants=False)
    sorted_coo = coo.coalesce()
    csr = sorted_coo.to_sparse_csr()

    def gradient(matrix):
        leaf = features.detach().requires_grad_()
        (matrix @ leaf).sum().backward()

    embedding = torch.nn.Embedding(nodes, WIDTH, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(embedding.parameters())

    def sparse_step():
        optimizer.zero_grad()
        embedding(indices[0]).sum().backward()
        optimizer.step()

    calls = {
        "COO coalesce": lambda: torch.sparse_coo_tensor(
            indices, values, (nodes, nodes), check_invariants=False
        ).coalesce(),
        "COO @ dense, any order": lambda: coo @ features,
        "COO @ dense, coalesced": lambda: sorted_coo @ features,
        "CSR @ dense": lambda: csr @ features,
        "CSR @ vector": lambda: csr @ features[:, 0],
        "CSR sampled_addmm": lambda: torch.sparse.sampled_addmm(csr, features, features.t(), beta=0.0),
        "COO to CSR": lambda: sorted_coo.to_sparse_csr(),
        "COO @ dense and gradient": lambda: gradient(sorted_coo),
        "COO + COO": lambda: sorted_coo + sorted_coo,
        "COO * COO": lambda: sorted_coo * sorted_coo,
        "SparseAdam step of an embedding": sparse_step,
    }
    return {name: 1e3 * peer.median_seconds(call, device, inner=3, repeats=5) for name, call in calls.items()}


if __name__ == "__main__":
    peer.run(measure, "ms", "Sparse matrices")
