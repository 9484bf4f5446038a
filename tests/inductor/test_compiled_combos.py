"""Small independent kernels as one launch: torch_anymps/inductor/combo.py."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees, kernel_count
from torch import nn
from torch._inductor import config
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("mps")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def several(a, b, c, d):
    """Elements, columns, rows that are read twice, and few elements."""
    return a.sin() + 1, b.float().sum(0), c.softmax(-1), d.exp() * 2, (a * a).sum(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_several_kinds(dtype, dynamic):
    sizes = ((40, 32), (64, 8), (9, 11), (5,))
    codes = compiled_agrees(several, *(torch.randn(*size).to(dtype) for size in sizes), dynamic=dynamic)
    assert kernel_count(codes) == 1
    assert codes[0].count("void part") >= 3


def test_sizes_that_change():
    compiled = torch.compile(several, dynamic=True, fullgraph=True)
    for n in (3, 70, 129):
        sizes = ((n, n + 1), (64, n), (9, 2 * n), (n,))
        inputs = [torch.randn(*size, device="mps") for size in sizes]
        for got, want in zip(compiled(*inputs), several(*inputs), strict=True):
            assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_one_that_reads_what_another_writes_is_no_part_of_it():
    def function(a, b):
        rows = a.sum(1)
        return rows, (a / rows[:, None]).sum(0), b.cos()

    compiled_agrees(function, torch.rand(16, 32) + 1, torch.randn(8))


def test_parts_that_read_the_same_memory_leave_it_as_it_is():
    def function(a, weight):
        product = a @ weight
        return product.sum(0), product.exp(), product.amax(1)

    compiled_agrees(function, torch.randn(16, 8), torch.randn(8, 32), tolerance=1e-4)


def test_more_arguments_than_a_launch_takes():
    def function(*tensors):
        return [(t.sin() * n).sum(0) for n, t in enumerate(tensors)]

    compiled_agrees(function, *(torch.randn(4 + n, 3) for n in range(40)), tolerance=1e-4)  # sums of up to 43 times 39


def test_parts_that_check_indices():
    def function(table, index, other, places):
        return table[index].sin(), other[places].cos()

    index, places = torch.tensor([0, 7, -8]), torch.tensor([[4, -5]])
    codes = compiled_agrees(function, torch.randn(8, 4), index, torch.randn(5), places)
    assert kernel_count(codes) == 1
    compiled = torch.compile(function)
    table, other = torch.randn(8, 4, device="mps"), torch.randn(5, device="mps")
    for wrong, size in ((0, 8), (1, 5)):
        given = [index.clone(), places.clone()]
        given[wrong][..., 0] = size
        with pytest.raises(torch.AcceleratorError, match=f"index out of bounds: expected 0 <= index < {size}"):
            compiled(table, given[0].to("mps"), other, given[1].to("mps"))
            torch.mps.synchronize()


def test_parts_that_write_a_row_of_something_large():
    """Keys and values of a token into caches of which a part reads and writes that row alone."""

    def function(keys, values, place, x):
        keys.index_copy_(0, place, x.sin())
        values.index_copy_(0, place, x.cos())

    keys, values = (torch.randn(1 << 16, 16) for _ in range(2))
    codes = compiled_agrees(function, keys, values, torch.tensor([70]), torch.randn(1, 16))
    assert kernel_count(codes) == 1


def test_large_kernels_stay_alone():
    x, y = torch.randn(1 << 19, device="mps"), torch.randn(1 << 19, device="mps")
    with fresh_cache():
        result, codes = run_and_get_code(torch.compile(lambda x, y: (x.sin(), y.cos())), x, y[1:])
    assert_close(result, (x.sin(), y[1:].cos()))
    assert kernel_count(codes) == 2


def test_they_can_be_turned_off():
    x, y = torch.randn(8, device="mps"), torch.randn(5, device="mps")
    with config.patch(combo_kernels=False), fresh_cache():
        _, codes = run_and_get_code(torch.compile(lambda x, y: (x.sin(), y.cos())), x, y)
    assert kernel_count(codes) == 2


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gradients_of_a_network(dtype):
    heads = nn.ModuleList(nn.Sequential(nn.Linear(16, n), nn.LayerNorm(n), nn.Linear(n, 4)) for n in (8, 12, 20)).to(
        "mps"
    )
    x = torch.randn(32, 16, device="mps")

    def loss(x):
        with torch.autocast("mps", dtype, enabled=dtype is not None):
            return sum(F.silu(head(x)).float().square().mean() for head in heads)

    expected = torch.autograd.grad(loss(x), list(heads.parameters()))
    torch._dynamo.reset()
    result = torch.autograd.grad(torch.compile(loss, fullgraph=True)(x), list(heads.parameters()))
    limit = 2e-5 if dtype is None else 3e-2
    for got, want in zip(result, expected, strict=True):
        assert_close(got, want, rtol=limit, atol=limit * max(want.abs().max().item(), 1))


def test_one_kernel_that_would_have_more_arguments_than_a_launch_takes():
    """Inductor fuses what reads the same tensor, however much else it reads."""
    compiled_agrees(
        lambda x, *others: [sum(others[n : n + 7], x) for n in range(0, 70, 7)],
        *(torch.randn(16) for _ in range(71)),
    )
