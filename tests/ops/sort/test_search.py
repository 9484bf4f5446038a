"""searchsorted and bucketize of many values in one row, which are sought in a tree of it, and of few."""

from bisect import bisect_left, bisect_right

import pytest
import torch

MANY = 1 << 18  # as many as csrc/ops/sort/search.cpp builds a tree for


def sorted_row(length, dtype):
    if dtype.is_floating_point:
        return torch.randn(length).to(dtype).sort()[0]
    return torch.randint(torch.iinfo(dtype).min // 2, torch.iinfo(dtype).max // 2, (length,), dtype=dtype).sort()[0]


# Rows get trees from 65,536 elements on; 131,072 and 262,144 are 64 times what a tree holds of int64 and float.
@pytest.mark.parametrize("length", [1, 7, 65535, 65536, 131071, 131072, 131073, 262143, 262144, 262145, 300001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_many_values(length, dtype):
    row = sorted_row(length, dtype)
    values = row[torch.randint(length, (MANY + 3,))]  # equal ones are what left and right differ by
    values[::3] = sorted_row(values[::3].numel(), dtype)
    right = length % 2 == 0
    for options in ({"right": right}, {"side": "left" if right else "right", "out_int32": True}):
        got = torch.searchsorted(row.to("mps"), values.to("mps"), **options)
        wanted = torch.searchsorted(row, values, **options)
        assert got.dtype == wanted.dtype
        assert torch.equal(got.cpu(), wanted)


def test_special_values_and_layouts():
    row = torch.cat([sorted_row(100000, torch.float32), torch.tensor([torch.inf])])
    row[0] = -torch.inf
    values = torch.randn(512, 600)
    values[0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    on_device = row.to("mps")
    for offset in (0, 1, 3, 6):  # rows that are not aligned
        got = torch.searchsorted(on_device[offset:], values.to("mps").t(), right=offset == 3)
        assert torch.equal(got.cpu(), torch.searchsorted(row[offset:], values.t().contiguous(), right=offset == 3))
    out = torch.empty(600, 512, dtype=torch.int64, device="mps").t()
    torch.bucketize(values.to("mps"), on_device[:100], out=out)
    assert torch.equal(out.cpu(), torch.bucketize(values, row[:100]))


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_rows_sorters_and_scalars(count):
    rows = torch.randn(3, 4, 77)
    ascending, order = rows.sort()
    values = torch.randn(3, 4, count)
    for row, options in ((ascending, {}), (rows, {"sorter": order})):
        moved = {name: tensor.to("mps") for name, tensor in options.items()}
        got = torch.searchsorted(row.to("mps"), values.to("mps"), **moved)
        assert torch.equal(got.cpu(), torch.searchsorted(row, values, **options))
    assert torch.searchsorted(torch.empty(0, device="mps"), values.to("mps")).count_nonzero().item() == 0


@pytest.mark.parametrize("row", [torch.tensor([-1.5, 0.25, 0.25, 3]), torch.tensor([-2, 0, 1, 5])])
@pytest.mark.parametrize("value", [0.25, 1, -3.5, True])
def test_numbers(row, value):
    for right in (False, True):
        got = torch.searchsorted(row.to("mps"), value, right=right)
        assert got.shape == () and got.item() == torch.searchsorted(row, value, right=right).item()
        assert torch.bucketize(value, row.to("mps"), right=right).item() == torch.bucketize(value, row, right=right)


@pytest.mark.parametrize("right", [False, True])
def test_numbers_beyond_int64(right):
    """The CPU has no kernel for uint64."""
    row = [0, 1, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    values = [2**64 - 1, 3, 2**63, 2**63 + 1, 0]
    sorted_row, sought = (torch.tensor(numbers, dtype=torch.uint64, device="mps") for numbers in (row, values))
    wanted = [(bisect_right if right else bisect_left)(row, value) for value in values]
    assert torch.searchsorted(sorted_row, sought, right=right).tolist() == wanted
