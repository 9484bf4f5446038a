"""Many threads on one device: the results are those of one thread."""

from __future__ import annotations

import concurrent.futures

import torch

THREADS = 8
ITERATIONS = 1000  # of all threads together


def train(seed: int, steps: int) -> list[torch.Tensor]:
    """A small net for some steps of SGD, its weights and data made on the CPU; returns the weights."""
    g = torch.Generator().manual_seed(seed)
    weights = [torch.randn(16, 8, generator=g), torch.randn(8, 4, generator=g)]
    weights = [w.mul(0.3).to("mps").requires_grad_() for w in weights]
    x, y = torch.randn(32, 16, generator=g).to("mps"), torch.randn(32, 4, generator=g).to("mps")
    for _ in range(steps):
        loss = ((x @ weights[0]).relu() @ weights[1] - y).square().mean()
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= 0.05 * w.grad
                w.grad = None
    return [w.detach().cpu() for w in weights]


def test_training_in_eight_threads(mps):
    steps = ITERATIONS // THREADS
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda seed: train(seed, steps), range(THREADS)))
    for seed in (0, THREADS - 1):
        for one, many in zip(train(seed, steps), results[seed], strict=True):
            assert torch.equal(one, many)


def test_transfers_in_eight_threads(mps):
    """Every thread uploads its own numbers and reads them back, while memory goes from thread to thread."""

    def round_trip(thread: int) -> bool:
        for i in range(40):
            x = torch.full((1000 + 37 * i,), thread * 100 + i, dtype=torch.int32)
            if not torch.equal(x.to("mps").add(1).cpu(), x + 1):
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(round_trip, range(THREADS)))


def test_one_graph_from_several_threads(mps):
    """Backward passes of several threads that end in one leaf: every gradient arrives once."""
    leaf = torch.zeros(256, device="mps", requires_grad=True)

    def accumulate(thread: int) -> None:
        for _ in range(10):
            (leaf * (thread + 1)).sum().backward()

    (leaf * 0).sum().backward()  # makes .grad, so that the threads only add
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(accumulate, range(THREADS)))
    assert torch.equal(leaf.grad.cpu(), torch.full((256,), 10.0 * sum(range(1, THREADS + 1))))
