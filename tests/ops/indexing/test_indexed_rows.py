"""Rows by index: copied in wide words, combined by sorted indices on GPUs (test_gpu_kernels.py), and gradients."""

import pytest
import torch
import torch.nn.functional as F
from compare import same

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
ENOUGH = 1 << 20  # elements that GPUs combine by sorted indices, where they do not add natively: indexed_rows.cpp


def values(shape, dtype):
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    return torch.randint(0, 100, shape).to(dtype)


def raises(call, name):
    with pytest.raises(torch.AcceleratorError, match=name):
        call()
        torch.mps.synchronize()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 16, 33, 64])
def test_rows_are_copied(dtype, width):
    x, index = values((50, width), dtype), torch.randint(0, 50, (70,))
    ours, at = x.to("mps"), index.to("mps")
    wide = index[:, None].expand(-1, width)
    same(ours.index_select(0, at), x.index_select(0, index))
    same(ours.index_select(0, at.int()), x.index_select(0, index))
    same(ours[at - 50], x[index])
    same(ours.gather(0, at[:, None].expand(-1, width)), x.gather(0, wide))
    same(ours[:, 1:].index_select(0, at[3:]), x[:, 1:].index_select(0, index[3:]))
    same(ours[1:].index_select(0, at[::2] % 49), x[1:].index_select(0, index[::2] % 49))
    same(ours.t().index_select(1, at), x.t().index_select(1, index))
    same(ours.view(2, 25, width).index_select(1, at % 25), x.view(2, 25, width).index_select(1, index % 25))
    same(ours[at[:1]], x[index[:1]])
    same(ours[at[:0]], x[index[:0]])
    places = torch.randperm(50)
    y = values((50, width), dtype)
    for view in (slice(None), slice(1, None)):
        to, back = x.clone(), ours.clone()
        to[places[view]] = y[view]
        back[places.to("mps")[view]] = y.to("mps")[view]
        same(back, to)
        same(ours.index_copy(0, places.to("mps")[view], y.to("mps")[view]), x.index_copy(0, places[view], y[view]))


def test_one_dimension():
    x, index = torch.randn(1000), torch.randint(0, 1000, (5000,))
    ours, at = x.to("mps"), index.to("mps")
    same(ours[at], x[index])
    same(ours[1:][at % 999], x[1:][index % 999])
    ones = torch.ones(5000)
    for add in (torch.index_add, torch.scatter_add):
        same(add(torch.zeros(1000, device="mps"), 0, at, ones.to("mps")), add(torch.zeros(1000), 0, index, ones))
    same(
        torch.zeros(1000, device="mps").scatter_add(0, at, ones.to("mps")),
        torch.zeros(1000).scatter_add(0, index, ones),
    )


@pytest.mark.parametrize("width", [1, 5, 64])
def test_one_row_has_an_index_an_element(width):
    """What is indexed then moves with the position, though the index does not stand still along a row."""
    x, index = torch.randn(20, width), torch.randint(0, 20, (1, width))
    ours, at, values = x.to("mps"), index.to("mps"), torch.randn(1, width)
    same(ours.gather(0, at), x.gather(0, index))
    same(ours.scatter(0, at, values.to("mps")), x.scatter(0, index, values))
    same(ours.scatter_add(0, at, values.to("mps")), x.scatter_add(0, index, values))
    same(ours.scatter_reduce(0, at, values.to("mps"), "amax"), x.scatter_reduce(0, index, values, "amax"))
    columns = torch.randint(0, width, (20, 1))
    same(ours.gather(1, columns.to("mps")), x.gather(1, columns))
    same(ours.t().gather(0, columns.t().to("mps")), x.t().gather(0, columns.t()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_eight_million_elements_are_added(dtype):
    """So many that sorted indices pay where the device adds floats natively, too."""
    width, nodes = 128, 300
    index = edges((1 << 23) // width + 5, nodes, 0.3)
    x = torch.randint(-4, 5, (len(index), width)).to(dtype)
    wanted = torch.zeros(nodes, width, dtype=torch.float64).index_add(0, index, x.double()).to(dtype)
    same(torch.zeros(nodes, width, dtype=dtype, device="mps").index_add(0, index.to("mps"), x.to("mps")), wanted)


@pytest.mark.parametrize("width", [3, 64])
def test_an_index_out_of_range_is_an_error(width):
    x = torch.randn(50, width, device="mps")
    raises(lambda: x.index_select(0, torch.tensor([0, 50], device="mps")), "index_select")
    raises(lambda: x[torch.tensor([0, -51], device="mps")], "index")
    raises(lambda: x.index_select(0, torch.tensor([0, -1], device="mps")), "index_select")
    raises(lambda: x.index_select(0, torch.tensor([0, 1 << 32], device="mps")), "index_select")


def edges(count, nodes, most):
    """Indices of which a share `most` is one node's, and one node has none."""
    index = torch.randint(0, nodes - 1, (count,))
    index[torch.rand(count) < most] = 5
    return index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width, most", [(64, 0.0), (18, 0.5), (256, 0.9)])
def test_many_rows_are_combined(dtype, width, most):
    count, nodes = -(-ENOUGH // width) + 3, 700
    index = edges(count, nodes, most)
    x, self = values((count, width), dtype), values((nodes, width), dtype)
    ours, at, to = x.to("mps"), index.to("mps"), self.to("mps")
    wide = index[:, None].expand(-1, width)
    wide_at = at[:, None].expand(-1, width)
    sums = self.double().index_add(0, index, x.double())
    scale = self.double().abs().index_add(0, index, x.double().abs())
    error = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps

    def close(got, wanted=sums, size=scale):
        assert got.dtype == dtype
        # Half an ulp of the result for its rounding, and float's error of the sums.
        bound = error * wanted.abs() + 2e-6 * size + 1e-7
        assert ((got.cpu().double() - wanted).abs() <= bound).all()

    close(to.index_add(0, at, ours))
    close(to.index_put((at - nodes,), ours, accumulate=True))
    close(to.scatter_add(0, wide_at, ours))
    close(to.scatter_reduce(0, wide_at, ours, "sum"))
    close(to[:, 1:].clone().index_add(0, at, ours[:, 1:]), sums[:, 1:], scale[:, 1:])
    into = torch.zeros(nodes + 2, width + 8, dtype=dtype, device="mps")
    into[1:-1, 4:-4] = to
    close(into[1:-1, 4:-4].index_add_(0, at, ours))
    assert into[0].eq(0).all() and into[:, :4].eq(0).all() and into[:, -4:].eq(0).all()
    for include in (True, False):
        for how in ("amax", "amin"):
            wanted = self.scatter_reduce(0, wide, x, how, include_self=include)
            same(to.scatter_reduce(0, wide_at, ours, how, include_self=include), wanted)
        wanted = self.double().scatter_reduce(0, wide, x.double(), "mean", include_self=include)
        got = to.scatter_reduce(0, wide_at, ours, "mean", include_self=include)
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=4 * error, atol=4 * error)


def test_products_and_nans_of_many_rows():
    width, nodes = 32, 3000
    count = ENOUGH // width
    index = edges(count, nodes, 0.0)
    x = 1 + 0.1 * torch.randn(count, width)
    x[7, 3] = float("nan")
    wide = index[:, None].expand(-1, width)
    self = torch.ones(nodes, width)
    ours, at = x.to("mps"), index.to("mps")[:, None].expand(-1, width)
    for how in ("prod", "amax", "amin"):
        got = self.to("mps").scatter_reduce(0, at, ours, how).cpu()
        torch.testing.assert_close(got, self.scatter_reduce(0, wide, x, how), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_gradients_of_a_graph_layer():
    nodes, count, width = 900, 16500, 64
    ends, features = torch.stack([edges(count, nodes, 0.1), edges(count, nodes, 0.1)]), torch.randn(nodes, width)
    weight = torch.rand(count, 1)

    def step(x, ends, weight):
        x = x.clone().requires_grad_()
        messages = x[ends[0]] * weight + F.embedding(ends[0], x) + x.index_select(0, ends[0])
        out = torch.zeros_like(x).index_add(0, ends[1], messages)
        most = out.scatter_reduce(0, ends[1][:, None].expand(-1, width), messages, "amax", include_self=False)
        (out.square().sum() + most.sum()).backward()
        return x.grad

    wanted = step(features.double(), ends, weight.double())
    got = step(features.to("mps"), ends.to("mps"), weight.to("mps")).cpu().double()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


@pytest.mark.parametrize("outside", [700, -1, 1 << 40])
def test_an_index_out_of_range_among_many(outside):
    index = torch.zeros(ENOUGH // 64, dtype=torch.int64)
    index[1234] = outside
    rows = torch.ones(len(index), 64, dtype=torch.bfloat16, device="mps")
    self = torch.zeros(700, 64, dtype=torch.bfloat16, device="mps")
    raises(lambda: self.index_add(0, index.to("mps"), rows), "index_add")
