"""Random sparse tensors, and one call on the CPU and on mps: what tests of sparse tensors share."""

from __future__ import annotations

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64]


def coordinates(size, sparse_dim, nnz, dtype=torch.float32, coalesced=False, seed=0):
    """A random tensor in coordinates on the CPU; places repeat unless it is coalesced."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(max(n, 1), (nnz,), generator=generator) for n in size[:sparse_dim]])
    values = torch.randint(-8, 9, (nnz, *size[sparse_dim:]), generator=generator).to(dtype)
    if dtype.is_complex:
        values = values + 1j * values.roll(1, 0)
    tensor = torch.sparse_coo_tensor(indices, values, size, check_invariants=True)
    return tensor.coalesce() if coalesced else tensor


def dense(*size, dtype=torch.float32, seed=1):
    values = torch.randint(-4, 5, size, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype)


def assert_same(actual, expected):
    """Equal as the CPU's result, layout, coalesced or not, and places of elements included."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
        return
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert actual.device.type == "mps" and actual.layout == expected.layout
    if expected.layout == torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
        assert (actual.sparse_dim(), actual.dense_dim()) == (expected.sparse_dim(), expected.dense_dim())
    if expected.layout == torch.sparse_coo and not expected.is_coalesced():  # any order, any number of elements
        actual, expected = actual.coalesce(), expected.coalesce()
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=1e-5 if expected.dtype != torch.bfloat16 else 1e-2, atol=1e-5
    )


def both(function, *tensors):
    """function on the CPU and on mps, which must agree; the same error where the CPU refuses."""
    expected = function(*(t.clone() for t in tensors))
    assert_same(function(*(t.to("mps") for t in tensors)), expected)


def gradients(function, *tensors):
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = function(*leaves)
    out = out.to_dense() if out.is_sparse else out
    (out * torch.arange(out.numel(), device=out.device).view(out.shape)).sum().backward()
    return [leaf.grad for leaf in leaves]
