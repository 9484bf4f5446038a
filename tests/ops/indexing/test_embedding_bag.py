"""embedding_bag: modes, padding, weights, offsets; renormalised embeddings."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, layouts

INDICES = torch.tensor([1, 4, 4, 0, 2, 2, 2, 6, 1, 0])
OFFSETS = torch.tensor([0, 3, 3, 7])  # the second bag is empty


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -7])
@pytest.mark.parametrize("last", [False, True])
def test_modes(mode, padding, last, mps, no_fallback):
    offsets = torch.cat([OFFSETS, torch.tensor([10])]) if last else OFFSETS
    agree(
        lambda w: F.embedding_bag(
            INDICES.to(w.device), w, offsets.to(w.device), mode=mode, padding_idx=padding, include_last_offset=last
        ),
        torch.randn(7, 5),
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ends", [[0, 2], [0, 3, 3, 7], [0, 0], [0], [0, 10]])
def test_the_last_offset_ends_the_last_bag(mode, padding, weighted, ends, mps, no_fallback):
    """By the definition, bag i being indices[offsets[i]:offsets[i + 1]]: the CPU takes some last bags to the end."""
    if weighted and mode != "sum":
        return
    table, scales = torch.randn(7, 5), torch.randn(10) if weighted else None

    def by_slices(w, s):
        bags = []
        for begin, end in itertools.pairwise(ends):
            kept = [i for i in range(begin, end) if INDICES[i] != padding]
            rows = w[INDICES[kept].to(w.device)]
            rows = rows if s is None else rows * s[kept].unsqueeze(1)
            reduce = {"sum": rows.sum, "mean": rows.mean, "max": rows.amax}[mode]
            bags.append(reduce(0) if kept else w.new_zeros(5))
        return torch.stack(bags) if bags else w.new_zeros(0, 5)

    def by_offsets(w, s):
        offsets = torch.tensor(ends, device=w.device)
        return F.embedding_bag(
            INDICES.to(w.device),
            w,
            offsets,
            mode=mode,
            per_sample_weights=s,
            padding_idx=padding,
            include_last_offset=True,
        )

    results = []
    for function, device in ((by_slices, "cpu"), (by_offsets, "mps")):
        leaves = [t.to(device).requires_grad_() for t in (table, scales) if t is not None]
        out = function(*leaves, *([] if weighted else [None]))
        gradients = torch.autograd.grad(out.square().sum(), leaves) if out.requires_grad else []
        results.append([t.detach().cpu() for t in (out, *gradients)])
    for got, wanted in zip(results[1], results[0]):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_low_precision(dtype, mode, mps):
    agree(
        lambda w: F.embedding_bag(INDICES.to(w.device), w, OFFSETS.to(w.device), mode=mode), torch.randn(7, 5).to(dtype)
    )


@pytest.mark.parametrize("padding", [None, 4])
def test_weights_of_samples(padding, mps, no_fallback):
    def call(w, s):
        bags = OFFSETS.to(w.device)
        return F.embedding_bag(INDICES.to(w.device), w, bags, mode="sum", per_sample_weights=s, padding_idx=padding)

    for weight in layouts((7, 5)):
        agree(call, weight, torch.randn(10))
    agree(call, torch.randn(7, 5), torch.randn(20)[::2])


def test_gradients_by_frequency(mps):
    """Each row's gradient is divided by how often the row is named. (The CPU takes another row's count.)"""
    table = torch.randn(7, 5, requires_grad=True, device=mps)
    out = F.embedding_bag(INDICES.to(mps), table, OFFSETS.to(mps), mode="sum", scale_grad_by_freq=True)
    out.backward(torch.ones_like(out))
    named = INDICES.bincount(minlength=7)
    torch.testing.assert_close(table.grad.cpu(), named.gt(0).float()[:, None].expand(7, 5))


@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
def test_matrix_of_indices_and_their_type(index_type, mps):
    indices = torch.randint(0, 7, (4, 3)).to(index_type)
    agree(lambda w: F.embedding_bag(indices.to(w.device), w, mode="mean"), torch.randn(7, 600))


def test_mixed_index_types(mps):
    for a, b in itertools.permutations((torch.int32, torch.int64)):
        agree(
            lambda w, a=a, b=b: F.embedding_bag(INDICES.to(w.device, a), w, OFFSETS.to(w.device, b)), torch.randn(7, 5)
        )


def test_empty(mps):
    nothing = torch.zeros(0, dtype=torch.int64)
    for mode in ("sum", "mean", "max"):
        agree(
            lambda w, mode=mode: F.embedding_bag(nothing.to(w.device), w, torch.tensor([0, 0]).to(w.device), mode=mode),
            torch.randn(7, 5),
        )
        agree(
            lambda w, mode=mode: F.embedding_bag(nothing.to(w.device), w, nothing.to(w.device), mode=mode),
            torch.randn(7, 5),
        )


def test_max_prefers_the_first_and_keeps_nan_like_the_cpu(mps):
    table = torch.tensor([[1.0, 2.0], [float("nan"), 2.0], [3.0, float("nan")]])
    for order in itertools.permutations(range(3)):
        agree(lambda w, order=order: F.embedding_bag(torch.tensor([order]).to(w.device), w, mode="max"), table)


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize(("indices", "offsets"), [([0, 9], [0]), ([0, -1], [0]), ([0, 1], [1]), ([0, 1], [0, 3])])
def test_out_of_range(indices, offsets, padding, mps):
    with pytest.raises(torch.AcceleratorError, match="embedding_bag"):
        F.embedding_bag(
            torch.tensor(indices, device=mps),
            torch.ones(7, 5, device=mps),
            torch.tensor(offsets, device=mps),
            padding_idx=padding,
        )
        torch.mps.synchronize()


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_renormalised_embeddings(norm, mps, no_fallback):
    table = torch.randn(7, 5) * 3
    expected, actual = table.clone(), table.to(mps)
    for t in (expected, actual):
        F.embedding(INDICES.to(t.device), t, max_norm=1.5, norm_type=norm)
    torch.testing.assert_close(actual.cpu(), expected)
    bag = torch.nn.EmbeddingBag.from_pretrained(table.to(mps), max_norm=1.5, norm_type=norm)
    bag(INDICES.to(mps).view(2, 5))
    torch.testing.assert_close(bag.weight.cpu(), expected)
