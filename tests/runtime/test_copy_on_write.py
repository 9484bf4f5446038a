"""Copy-on-write storages: torch._lazy_clone shares memory until one side is written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

is_cow = torch._C._is_cow_tensor
address = torch._C._data_address
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_first_to_write_copies_and_the_last_keeps_the_memory(dtype, mps):
    t = torch.tensor([[0, 1], [1, 0]], dtype=dtype, device=mps)
    memory = address(t)
    clone = t._lazy_clone()
    assert is_cow(t) and is_cow(clone) and address(clone) == memory
    assert torch.equal((t == clone).cpu(), torch.ones(2, 2, dtype=torch.bool)) and is_cow(t) and is_cow(clone)
    view = t.view(4)
    view[1:].fill_(1)
    assert not is_cow(t) and not is_cow(view) and is_cow(clone) and address(clone) == memory != address(t)
    assert clone.tolist() == torch.tensor([[0, 1], [1, 0]], dtype=dtype).tolist()
    clone.zero_()
    assert not is_cow(clone) and address(clone) == memory
    assert t.tolist() == torch.tensor([[0, 1], [1, 1]], dtype=dtype).tolist()


# Ways to write a tensor of three ones; the same on the CPU.
WRITES = {
    "in place": lambda t: t.add_(1),
    "out": lambda t: torch.mul(torch.full((3,), 3.0, device=t.device), 2, out=t),
    "structured reduction": lambda t: torch.sum(torch.ones(3, 2, device=t.device), 1, out=t),
    "index": lambda t: t.__setitem__(1, 7.0),
    "index tensor": lambda t: t.index_add_(0, torch.tensor([2], device=t.device), torch.ones(1, device=t.device)),
    "mask": lambda t: t.masked_fill_(t > 0, 5),
    "scatter": lambda t: t.scatter_(0, torch.tensor([1], device=t.device), 4.0),
    "upload": lambda t: t.copy_(torch.tensor([5.0, 6, 7])),
    "copy": lambda t: t.copy_(torch.full((3,), 2.0, device=t.device)),
    "other dtype": lambda t: t.copy_(torch.full((3,), 2, device=t.device)),
    "foreach": lambda t: torch._foreach_add_([t], 1),
    "foreach zero": lambda t: torch._foreach_zero_([t]),
    "fused optimizer": lambda t: torch._fused_sgd_(
        [t],
        [torch.ones_like(t)],
        [],
        weight_decay=0,
        momentum=0,
        lr=0.5,
        dampening=0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    ),  # fmt: skip
    "sort": lambda t: torch.sort(
        torch.tensor([3.0, 1, 2], device=t.device), out=(t, torch.empty(3, dtype=torch.long, device=t.device))
    ),
    "product": lambda t: torch.mv(torch.eye(3, device=t.device) * 2, torch.ones(3, device=t.device), out=t),
    "cumulative": lambda t: t.cumsum_(0),
    "storage": lambda t: t.untyped_storage().fill_(0),
    "running mean": lambda t: F.batch_norm(
        torch.arange(6.0, device=t.device).reshape(2, 3), t, torch.ones(3, device=t.device), training=True
    ),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("written", ["clone", "original"])
def test_every_write_leaves_the_other_alone(name, written, mps):
    def outcome(device):
        original = torch.ones(3, device=device)
        clone = original._lazy_clone()
        changed, other = (clone, original) if written == "clone" else (original, clone)
        WRITES[name](changed)
        return changed[:3].cpu(), other.cpu(), is_cow(changed), is_cow(other)

    changed, other, *cow = outcome(mps)
    expected = outcome("cpu")
    torch.testing.assert_close(changed, expected[0])
    assert other.tolist() == [1, 1, 1]
    assert cow == [False, True] == list(expected[2:])


@pytest.mark.parametrize(
    "grow",
    [
        lambda t: t.resize_(5),
        lambda t: torch.empty(0, device=t.device).set_(t.untyped_storage(), 0, (5,), (1,)),
    ],
    ids=["resize", "set"],
)
def test_growing_makes_a_copy(grow, mps):
    """The CPU ends in an internal assertion at the write."""
    original = torch.ones(3, device=mps)
    clone = original._lazy_clone()
    grow(clone)
    clone.add_(1)
    assert original.tolist() == [1, 1, 1] and clone[:3].tolist() == [2, 2, 2]
    assert is_cow(original) and not is_cow(clone)


READS = {
    "binary": lambda a, b: a + b,
    "reduction": lambda a, b: (a * b).sum() + a.amax() + b.std(),
    "product": lambda a, b: a @ b,
    "softmax": lambda a, b: a.softmax(-1) + F.layer_norm(b, (4,)),
    "sort": lambda a, b: a.sort().values + b.cumsum(0),
    "index": lambda a, b: a[b.argmax(0)] + a.index_select(0, b.argmin(1)),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "convolution": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
    "download": lambda a, b: a.cpu() + b.cpu(),
    "conversion": lambda a, b: a.half() + b.to(torch.bfloat16),
    "strides": lambda a, b: a.t().contiguous() + b[::2].repeat(2, 1),
}


@pytest.mark.parametrize("name", READS)
def test_reading_copies_nothing_forward_and_backward(name, mps, all_bits_of_f32):
    a, b = (torch.randn(4, 4, device=mps, requires_grad=True) for _ in range(2))
    lazy = [t.detach()._lazy_clone().requires_grad_() for t in (a, b)]
    expected, result = READS[name](a, b), READS[name](*lazy)
    torch.testing.assert_close(result, expected)
    gradient = torch.ones_like(result)._lazy_clone()
    for t, g in zip((a, b), torch.autograd.grad(result, lazy, gradient, allow_unused=True), strict=True):
        if g is not None:
            torch.testing.assert_close(g, torch.autograd.grad(expected.sum(), t, retain_graph=True)[0])
    assert all(map(is_cow, [*lazy, gradient]))


def test_the_fallback_writes_a_copy(mps, monkeypatch):
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    source = torch.tensor([0, 1, 1], device=mps)
    out = torch.zeros(4, dtype=torch.long, device=mps)
    clone = out._lazy_clone()
    torch._convert_indices_from_coo_to_csr(source, 3, out=clone)
    assert out.tolist() == [0, 0, 0, 0] and clone.tolist() == [0, 1, 3, 3]


def test_chains_and_memory(mps, no_garbage):
    start = torch.mps.current_allocated_memory()
    x = torch.arange(1000.0, device=mps)
    one = torch.mps.current_allocated_memory() - start
    clones = [x._lazy_clone() for _ in range(10)] + [x[5:]._lazy_clone()]
    clones += [clones[0]._lazy_clone()]
    assert torch.mps.current_allocated_memory() == start + one
    for i, clone in enumerate(clones):
        clone.add_(i)
    assert all(c[0].item() == i + 5 * (i == 10) for i, c in enumerate(clones)) and x[7].item() == 7
    assert torch.mps.current_allocated_memory() == start + 13 * one
    x.add_(1)  # the last one has the memory for itself
    assert torch.mps.current_allocated_memory() == start + 13 * one and not is_cow(x)
    empty = torch.empty(0, device=mps)._lazy_clone().add_(1)
    assert empty.numel() == 0
    del x, clones, clone
    assert torch.mps.current_allocated_memory() == start
