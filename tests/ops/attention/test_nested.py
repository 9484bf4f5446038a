"""Nested tensors: jagged ones against the CPU, and what a padding mask does to a TransformerEncoder."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree

aten = torch.ops.aten
ROWS = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def offsets_of(*lengths, dtype=torch.int64):
    return torch.tensor([0, *lengths], dtype=dtype).cumsum(0, dtype=dtype)


def values(*shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randn(shape, dtype=dtype) if dtype.is_complex else (torch.randn(shape) * 9).to(dtype)


@pytest.mark.parametrize("dtype", ROWS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_padding_and_back(dtype, shape, mps, no_fallback):
    offsets = offsets_of(3, 0, 5, 1)
    padding = 1.0 if dtype == torch.bool else 7.0
    x = values(9, *shape, dtype=dtype)
    same = lambda function, x: agree(function, x, offsets, tolerance=0, backward=False)  # noqa: E731
    same(lambda x, o: aten._jagged_to_padded_dense_forward(x, [o], [6], padding), x)
    padded = values(4, 5, *shape, dtype=dtype)
    same(lambda x, o: aten._padded_dense_to_jagged_forward(x, [o], 9), padded)
    same(lambda x, o: aten._padded_dense_to_jagged_forward(x, [o]), padded)


def test_strides_cuts_and_empty_ones(mps):
    offsets = offsets_of(3, 0, 5, 1, dtype=torch.int32)
    pad = lambda length: lambda x, o: aten._jagged_to_padded_dense_forward(x, [o], [length], -1.0)  # noqa: E731
    agree(pad(5), torch.randn(3, 9).t(), offsets, backward=False)
    agree(pad(2), torch.randn(11, 4)[1:-1, ::2], offsets, backward=False)
    agree(pad(0), torch.randn(9, 4), offsets, backward=False)
    agree(pad(4), torch.randn(0, 4), offsets_of(0, 0), backward=False)
    agree(pad(4), torch.randn(9, 0), offsets, backward=False)
    unpad = lambda x, o: aten._padded_dense_to_jagged_forward(x, [o], 9)  # noqa: E731
    agree(unpad, torch.randn(4, 3, 5).transpose(1, 2), offsets, backward=False)
    agree(unpad, torch.randn(4, 5, 0), offsets, backward=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_infinite_padding_of_integers_is_their_limit(dtype, mps):
    x, offsets = torch.arange(4).to(dtype), offsets_of(1, 3)
    for padding in (float("inf"), float("-inf")):
        agree(lambda x, o, p=padding: aten._jagged_to_padded_dense_forward(x, [o], [3], p), x, offsets, tolerance=0)


def test_errors(mps, raises_as_on_the_cpu):
    def offsets(ones):
        return ones(3).to(torch.int64).cumsum(0) - 1

    raises_as_on_the_cpu(
        lambda ones: aten._jagged_to_padded_dense_forward(ones(2), [offsets(ones).view(3, 1)], [3], 0.0)
    )
    raises_as_on_the_cpu(lambda ones: aten._padded_dense_to_jagged_forward(ones(2), [offsets(ones)]))
    x, wrong = torch.ones(4, device=mps), torch.tensor([0, 9], device=mps)
    with pytest.raises(torch.AcceleratorError, match="_jagged_to_padded_dense_forward"):
        aten._jagged_to_padded_dense_forward(x, [wrong], [3], 0.0)
        torch.mps.synchronize()
    with pytest.raises(torch.AcceleratorError, match="_padded_dense_to_jagged_forward"):
        aten._padded_dense_to_jagged_forward(torch.ones(1, 4, device=mps), [wrong], 9)
        torch.mps.synchronize()


def jagged(device, requires_grad=True, width=(8,), lengths=(3, 1, 5)):
    torch.manual_seed(7)
    parts = [torch.randn(n, *width) for n in lengths]
    parts = [part.to(device) for part in parts]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device, requires_grad=requires_grad)


def plain(t):
    return t.values() if t.is_nested else t


OPERATORS = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "mean of the last": lambda x: x.mean(-1),
    "sum of all": lambda x: x.sum(),
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1),
    "argmax": lambda x: x.detach().argmax(1),
    "softmax": lambda x: x.softmax(1),
    "softmax of the last": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.5),
    "padded to": lambda x: x.to_padded_tensor(-1.0, (3, 7, 8)),
    "transposed": lambda x: x.transpose(1, 2),
    "broadcast": lambda x: x + torch.arange(24.0, device=x.device).view(3, 1, 8),
    "chunk": lambda x: x.chunk(2, -1)[1] * 2,
    "unbind": lambda x: x.unbind()[2] * 2,
    "gelu": lambda x: F.gelu(x),
    "matmul": lambda x: x @ torch.arange(24.0, device=x.device).view(8, 3),
    "reshape": lambda x: x.unflatten(-1, (2, 4)).transpose(1, 2),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "masked_fill": lambda x: x.masked_fill(x > 0, 3.0),
    "clone": lambda x: x.clone(memory_format=torch.contiguous_format),
}


WITHOUT_GRADIENT = {"sum", "mean", "log_softmax"}  # PyTorch has none for jagged tensors, on any device


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_jagged_tensors(name, mps, no_fallback):
    results = []
    for device in ("cpu", mps):
        x = jagged(device)
        y = plain(OPERATORS[name](x))
        found = [y.detach().cpu()]
        if y.requires_grad and name not in WITHOUT_GRADIENT:
            (y * torch.arange(1.0, y.numel() + 1, device=device).view(y.shape).sin()).sum().backward()
            found.append(x.grad.values().cpu())
        results.append(found)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_ways_to_make_one(mps):
    flat, offsets = torch.randn(9, 8), offsets_of(3, 1, 5)
    x = torch.nested.nested_tensor_from_jagged(flat.to(mps), offsets.to(mps))
    assert x.device.type == "mps" and [part.shape[0] for part in x.unbind()] == [3, 1, 5]
    torch.testing.assert_close(x.cpu().values(), flat)
    other = torch.nested.as_nested_tensor([part.to(mps) for part in flat.split([3, 1, 5])], layout=torch.jagged)
    torch.testing.assert_close(other.values().cpu(), flat)
    assert torch.equal(jagged("cpu").to(mps).values().cpu(), jagged("cpu").values())
    dense, lengths = torch.randn(3, 6, 2), torch.tensor([2, 6, 1])
    holes = [torch.nested.narrow(dense.to(d), 1, 0, lengths.to(d), layout=torch.jagged) for d in ("cpu", mps)]
    for ours, theirs in zip(holes[1].unbind(), holes[0].unbind()):
        assert torch.equal(ours.cpu(), theirs)


def test_training(mps):
    """A residual block on jagged rows."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 24), torch.nn.GELU(), torch.nn.Linear(24, 8))
    losses = []
    for device in ("cpu", mps):
        ours = copy.deepcopy(model).to(device)
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.2)
        x = jagged(device, requires_grad=False)
        found = []
        for _ in range(4):
            loss = (ours(x) - x).values().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(3, 1, 5), (4,), (2, 0, 3)])
def test_attention(lengths, mps, no_fallback):
    results = []
    for device in ("cpu", mps):
        x = jagged(device, lengths=lengths)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (x, x.sin(), x.cos()))
        y = F.scaled_dot_product_attention(q, k, v, scale=0.7)
        weights = torch.arange(1.0, y.values().numel() + 1, device=device).sin()
        (y.transpose(1, 2).values().flatten() * weights).sum().backward()
        results.append([y.transpose(1, 2).values().detach().cpu(), y.offsets().cpu(), x.grad.values().cpu()])
        # Its reasons are asked of CUDA first from 2.15 on, which a CUDA build without a driver does not survive.
        with pytest.raises(RuntimeError, match="No viable backend|CUDA driver"):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(5, 2, 1), (5, 5, 5), (0, 3, 2)])
def test_left_aligned_masks(lengths, mps):
    t, mask = torch.randn(3, 5, 2), torch.arange(5).expand(3, 5) < torch.tensor(lengths)[:, None]
    for m in (mask, mask.flip(1), ~mask, mask.t().contiguous().t()):
        expected = torch._nested_tensor_from_mask_left_aligned(t, m)
        assert torch._nested_tensor_from_mask_left_aligned(t.to(mps), m.to(mps)) == expected
    agree(lambda t, m: torch.tensor(torch._nested_tensor_from_mask_left_aligned(t, m)), t[:, :1], mask[:, :1])


def test_errors_of_masks(raises_as_on_the_cpu):
    left_aligned = torch._nested_tensor_from_mask_left_aligned
    raises_as_on_the_cpu(lambda ones: left_aligned(ones(2, 3, 4), ones(2, 3)))
    raises_as_on_the_cpu(lambda ones: left_aligned(ones(2, 3, 4), ones(2).bool()))
    raises_as_on_the_cpu(lambda ones: left_aligned(ones(2, 3), ones(2, 3).bool()))
    raises_as_on_the_cpu(lambda ones: left_aligned(ones(2, 3, 4), ones(2, 4).bool()))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_encoder_with_a_padding_mask(aligned, grad, mps, no_fallback):
    """Where the mask says padding the CPU's fast path has zeros, and its ordinary path, which is ours, anything."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    src, padding = torch.randn(3, 5, 8), torch.arange(5).expand(3, 5) >= torch.tensor([5, 2, 3])[:, None]
    padding = padding if aligned else padding.flip(1)
    with torch.set_grad_enabled(grad):
        expected = model(src, src_key_padding_mask=padding).detach()
        actual = model.to(mps)(src.to(mps), src_key_padding_mask=padding.to(mps)).detach().cpu()
    torch.testing.assert_close(actual[~padding], expected[~padding], rtol=1e-5, atol=1e-5)
