"""Reads and writes by index in generated kernels, and indices that are out of range."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees


@pytest.mark.parametrize("dynamic", [None, True])
def test_reads(mps, dynamic):
    compiled_agrees(
        lambda t, i, j: (t[i], t[:, j].sum(1, keepdim=True), torch.gather(t, 1, i[:, None]), F.embedding(i, t) * 2),
        torch.randn(50, 40),
        torch.randint(0, 40, (33,)),
        torch.randint(-40, 40, (7,)),
        dynamic=dynamic,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_sums_into_memory(mps, dtype):
    t, s = torch.zeros(50, 40).to(dtype), torch.randint(-3, 4, (200, 40)).to(dtype)
    i = torch.randint(0, 50, (200,))
    compiled_agrees(lambda t, i, s: (t.index_add(0, i, s), t.scatter_add(0, i[:, None].expand_as(s), s)), t, i, s)


def test_writes(mps):
    i = torch.randperm(50)[:20]
    compiled_agrees(
        lambda t, i, s: (t.index_put((i,), s), t.index_copy(0, i, s), t.scatter(0, i[:, None].expand_as(s), s)),
        torch.randn(50, 40),
        i,
        torch.randn(20, 40),
    )


def test_embedding_backward(mps):
    weight = torch.randn(30, 16, requires_grad=True)
    compiled_agrees(lambda w, i: F.embedding(i, w).sin(), weight, torch.randint(0, 30, (9, 11)), backward=True)


def test_cross_entropy(mps):
    x = torch.randn(64, 30, requires_grad=True)
    compiled_agrees(lambda x, t: F.cross_entropy(x, t), x, torch.randint(0, 30, (64,)), backward=True)


def test_out_of_range_raises_at_the_next_synchronization(mps):
    compiled = torch.compile(lambda t, i: t[i] + 1)
    t = torch.randn(50, 4, device=mps)
    compiled(t, torch.tensor([0, 49], device=mps))
    torch.mps.synchronize()
    compiled(t, torch.tensor([0, 50], device=mps))
    with pytest.raises(torch.AcceleratorError, match="out of bounds"):
        torch.mps.synchronize()


@pytest.mark.parametrize("include_last", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mps, mode, include_last):
    """The operator's results have the sizes that PyTorch's meta function promises."""
    indices, offsets = torch.tensor([0, 1, 2, 3, 1, 4]), torch.tensor([0, 2, 2, 6] if include_last else [0, 2, 2])

    def function(weight, indices, offsets):
        return torch.nn.functional.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=include_last)

    compiled_agrees(function, torch.randn(6, 4, requires_grad=True), indices, offsets, backward=True)
