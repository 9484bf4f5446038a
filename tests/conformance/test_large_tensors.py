"""Tensors of more than 4 GiB, and of more than 2^31 and 2^32 elements, where the device has the memory.

Where it has not, the allocation raises torch.OutOfMemoryError and the next operator works.
"""

from __future__ import annotations

import pytest
import torch

GIB = 2**30


def allocate(elements: int, copies: int, device: torch.device) -> torch.Tensor | None:
    """Uninitialized bytes; None after an honest refusal where the device cannot hold `copies` such tensors."""
    limit = min(torch._C._mps_maxBufferLength(), torch.mps.recommended_max_memory() // copies)
    if elements <= limit:
        return torch.empty(elements, dtype=torch.uint8, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(max(elements, 1 << 50), dtype=torch.uint8, device=device)
    assert torch.ones(3, device=device).sum().item() == 3
    return None


@pytest.fixture(autouse=True)
def _give_memory_back(mps):
    yield
    torch.mps.empty_cache()


def test_elements_beyond_4_gib_are_written_and_read(mps):
    x = allocate(4 * GIB + 77, 2, mps)
    if x is None:
        return
    x.fill_(3)
    x[-1] = 9
    x[4 * GIB] = 7
    assert x[4 * GIB :].long().sum().item() == 3 * 75 + 9 + 7
    assert torch.count_nonzero(x == 3).item() == x.numel() - 2
    assert x.argmax().item() == x.numel() - 1
    picked = x.index_select(0, torch.tensor([0, 4 * GIB, x.numel() - 1], device=mps))
    assert picked.tolist() == [3, 7, 9]
    assert x[4 * GIB - 2 : 4 * GIB + 2].cpu().tolist() == [3, 3, 7, 3]


def test_pointwise_of_more_than_2_to_31_elements(mps):
    x = allocate(2**31 + 5, 4, mps)
    if x is None:
        return
    x.zero_()
    x[-5:] = torch.arange(1, 6, dtype=torch.uint8, device=mps)
    y = x + 1
    assert y[-5:].tolist() == [2, 3, 4, 5, 6] and y[:3].tolist() == [1, 1, 1]
    assert torch.equal(y - 1, x)
    pairs = x[:-1].view(2, -1).t()  # strided, both halves beyond 2^30 elements
    assert (pairs + 1)[-2:].tolist() == [[1, 4], [1, 5]]


def test_sum_of_more_than_2_to_31_floats(mps):
    x = allocate(4 * (2**31 + 3), 2, mps)
    if x is None:
        return
    x = x.view(torch.float32).fill_(0.5)
    assert x.sum().item() == pytest.approx((2**31 + 3) / 2, rel=1e-6)
    x[-1] = 2
    assert x.argmax().item() == 2**31 + 2


def test_rows_of_a_large_matrix(mps):
    x = allocate(4 * 1100 * 2**20, 2, mps)
    if x is None:
        return
    rows = x.view(torch.float32).view(2**20, 1100).fill_(1)
    rows[-1] = 2
    sums = rows.sum(1)
    assert sums[0].item() == 1100 and sums[-1].item() == 2200
    product = rows @ torch.ones(1100, 2, device=mps)
    assert product[-1].tolist() == [2200, 2200] and product[0].tolist() == [1100, 1100]
    assert torch.softmax(rows, 1)[-1].sum().item() == pytest.approx(1, abs=1e-4)


def test_reduction_of_more_than_2_to_31_elements(mps):
    """Of one element that an expanded tensor repeats: no memory is needed."""
    count = 2**31 + 77
    assert torch.full((1,), 0.5, device=mps).expand(count).sum().item() == pytest.approx(count / 2, rel=1e-6)
    assert not torch.zeros(1, dtype=torch.bool, device=mps).expand(count).any().item()
