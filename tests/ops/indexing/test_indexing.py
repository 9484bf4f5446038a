"""index, gather, scatter, embedding and nonzero against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import REAL_DTYPES
from compare import same


def values(shape, dtype):
    return torch.randn(shape).mul(4).to(dtype) if dtype.is_floating_point else torch.randint(0, 100, shape).to(dtype)


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_index_by_tensors_masks_and_slices(dtype):
    x = values((5, 6, 7), dtype)
    i, j = torch.randint(-5, 5, (4,)), torch.randint(0, 6, (3, 1))
    mask = torch.rand(5, 6) > 0.5
    for key in (
        (i,),
        (i, slice(None), 2),
        (slice(None), j),
        (i, slice(1, 3), torch.randint(0, 7, (4,))),
        (mask,),
        (None, mask, 3),
        (torch.tensor(2),),
        (i[:0],),
        (i.int(),),
    ):
        ours = tuple(k.to("mps") if isinstance(k, torch.Tensor) else k for k in key)
        same(x.to("mps")[ours], x[key])
    for view, ours in ((x.transpose(0, 2), x.to("mps").transpose(0, 2)), (x[1:, ::2], x.to("mps")[1:, ::2])):
        same(ours[torch.tensor([1, 0], device="mps")], view[torch.tensor([1, 0])])


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_index_put(dtype):
    for key, shape in (
        ((torch.tensor([0, 3, 1]),), (3, 6)),
        ((slice(None), torch.tensor([5, 0])), (4, 2)),
        ((torch.tensor([[0], [2]]), torch.tensor([1, 4])), (2, 2)),
        ((torch.rand(4, 6) > 0.5,), ()),
    ):
        x, v = values((4, 6), dtype), values(shape, dtype)
        ours = x.to("mps")
        x[key] = v
        ours[tuple(k.to("mps") if isinstance(k, torch.Tensor) else k for k in key)] = v.to("mps")
        same(ours, x)
    x = values((4, 6), dtype)
    ours = x.to("mps").t()
    x.t()[torch.tensor([1, 2])] = 1
    ours[torch.tensor([1, 2], device="mps")] = 1
    same(ours.t(), x)


def test_index_put_accumulates():
    for dtype in (torch.float32, torch.int64, torch.int32, torch.uint8):
        x, i = values((7, 3), dtype), torch.randint(0, 7, (50,))
        v = torch.randint(0, 3, (50, 3)).to(dtype)
        wanted = x.index_put((i,), v, accumulate=True)
        same(x.to("mps").index_put((i.to("mps"),), v.to("mps"), accumulate=True), wanted)
    big = torch.randint(-(2**40), 2**40, (1000,))
    i = torch.zeros(1000, dtype=torch.int64)
    same(
        torch.zeros(2, dtype=torch.int64, device="mps").index_add(0, i.to("mps"), big.to("mps")),
        torch.zeros(2, dtype=torch.int64).index_add(0, i, big),
    )


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_gather_and_scatter(dtype):
    x = values((5, 6, 4), dtype)
    for dim in range(3):
        index = torch.argsort(torch.rand(x.shape), dim)[:3, :4, :2]  # no two for one place
        src = values((4, 5, 3), dtype)
        for view, ours in ((x, x.to("mps")), (x.flip(0)[1:], x.to("mps").flip(0)[1:])):
            at = index.clamp(max=view.size(dim) - 1)
            same(ours.gather(dim, at.to("mps")), view.gather(dim, at))
        same(x.to("mps").scatter(dim, index.to("mps"), src.to("mps")), x.scatter(dim, index, src))
        same(x.to("mps").scatter(dim, index.to("mps"), 1), x.scatter(dim, index, 1))
    same(torch.tensor(3.0, device="mps").gather(0, torch.tensor(0, device="mps")), torch.tensor(3.0))


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amin", "amax"])
@pytest.mark.parametrize("include_self", [False, True])
def test_scatter_reduce(reduce, include_self):
    for dtype in (torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8):
        x, src = torch.randint(0, 9, (5, 3)).to(dtype), torch.randint(1, 4, (6, 3)).to(dtype)
        index = torch.randint(0, 5, (6, 3))
        wanted = x.scatter_reduce(0, index, src, reduce, include_self=include_self)
        got = x.to("mps").scatter_reduce(0, index.to("mps"), src.to("mps"), reduce, include_self=include_self)
        if reduce == "mean" and dtype == torch.float32:
            torch.testing.assert_close(got.cpu(), wanted, rtol=3e-7, atol=0)  # Vulkan: a quotient to 2.5 ulp
        else:
            same(got, wanted)


ADDITIONS = {
    "scatter_add": lambda x, index, src: x.scatter_add(0, index, src),
    "scatter_add_": lambda x, index, src: x.scatter_add_(0, index, src),
    "scatter_reduce": lambda x, index, src: x.scatter_reduce(0, index, src, "sum"),
    "index_add": lambda x, index, src: x.index_add(0, index, src),
    "index_add_ of rows": lambda x, index, src: x.view(7, 1).index_add_(0, index, src.view(-1, 1)).view(-1),
    "index_add of columns": lambda x, index, src: (
        x.view(1, 7).expand(3, 7).contiguous().index_add(1, index, src.expand(3, -1))[2]
    ),
    "index_put": lambda x, index, src: x.index_put((index,), src, accumulate=True),
    "index_put_ of columns": lambda x, index, src: torch.ops.aten.index_put_(
        x.repeat(2, 1), [None, index], src, accumulate=True
    )[1],
    "index_put_ of every other": lambda x, index, src: x.repeat_interleave(2)[::2].index_put_(
        (index,), src, accumulate=True
    ),
    "put_": lambda x, index, src: x.put_(index, src, accumulate=True),
    "gradient of index": lambda x, index, src: torch.autograd.grad(x.requires_grad_()[index], x, src)[0],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ADDITIONS)
def test_added_halves_are_rounded_once(dtype, name):
    # Sums that float holds exactly, in any order. The CPU's sums of halves are no reference: it rounds each of them.
    src = torch.randint(1, 256, (4000,)).to(dtype) / 64
    index, x = torch.randint(0, 7, (4000,)), torch.zeros(7, dtype=dtype)
    wanted = x.float().scatter_add(0, index, src.float()).to(dtype)
    same(ADDITIONS[name](x.to("mps"), index.to("mps"), src.to("mps")).detach(), wanted)


def test_added_halves_of_masks_views_and_scalars():
    zero, one = torch.tensor(0), torch.ones((), dtype=torch.float16)
    same(one.to("mps").scatter_add(0, zero.to("mps"), one.to("mps")), one + one)
    same(one.to("mps").index_add(0, zero.to("mps"), one.to("mps")), one + one)
    x, mask = torch.randn(4, 6).half(), torch.rand(4, 6) > 0.5
    same(x.to("mps").index_put_((mask.to("mps"),), one.to("mps"), True), x.clone().index_put_((mask,), one, True))
    wide = torch.zeros(8, 5, dtype=torch.bfloat16, device="mps")
    wide.t()[1:4].index_add_(1, torch.tensor([2, 2, 2], device="mps"), wide.new_ones(3, 3))
    assert wide.sum().item() == 9 and wide[2].tolist() == [0, 3, 3, 3, 0]


def test_select_add_copy_fill_take_put():
    x = torch.randn(5, 6)
    i = torch.tensor([4, 0, 0, 2])
    src = torch.randn(4, 6)
    ours, at = x.to("mps"), i.to("mps")
    same(ours.index_select(0, at), x.index_select(0, i))
    same(ours.t().index_select(1, at), x.t().index_select(1, i))
    torch.testing.assert_close(ours.index_add(0, at, src.to("mps"), alpha=2).cpu(), x.index_add(0, i, src, alpha=2))
    same(ours.index_copy(0, at[1:].unique(), src[:2].to("mps")), x.index_copy(0, i[1:].unique(), src[:2]))
    same(ours.index_fill(1, torch.tensor([-1, 2], device="mps"), 7.0), x.index_fill(1, torch.tensor([-1, 2]), 7.0))
    flat = torch.tensor([[-1, 3], [29, 0]])
    same(ours.take(flat.to("mps")), x.take(flat))
    same(ours.clone().put_(flat.to("mps"), torch.ones(2, 2, device="mps")), x.clone().put_(flat, torch.ones(2, 2)))
    mask = torch.rand(5, 6) > 0.5
    same(ours.masked_select(mask.to("mps")), x.masked_select(mask))
    same(
        ours.masked_scatter(mask.to("mps"), torch.arange(30.0, device="mps")),
        x.masked_scatter(mask, torch.arange(30.0)),
    )


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_nonzero(dtype):
    for shape in ((), (1,), (63,), (64,), (65,), (5, 0), (7, 9, 11), (70000,)):
        x = (torch.rand(shape) > 0.7).to(dtype)
        same(x.to("mps").nonzero(), x.nonzero())
    x = torch.rand(20, 30) > 0.5
    same(x.to("mps").t()[2:].nonzero(), x.t()[2:].nonzero())


@pytest.fixture
def deterministic_algorithms():
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(padding_idx, by_frequency):
    weight, i = torch.randn(10, 6), torch.randint(0, 10, (4, 9))
    a, b = weight.clone().requires_grad_(), weight.to("mps").requires_grad_()
    options = {"padding_idx": padding_idx, "scale_grad_by_freq": by_frequency}
    wanted, got = F.embedding(i, a, **options), F.embedding(i.to("mps"), b, **options)
    same(got.detach(), wanted.detach())
    grad = torch.randn_like(wanted)
    wanted.backward(grad)
    got.backward(grad.to("mps"))
    torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [False, True])
def test_embedding_gradient_of_rows_that_meet(dtype, deterministic, deterministic_algorithms):
    deterministic_algorithms(deterministic)
    for width in (1, 5, 300):
        for i in (torch.zeros(700), torch.arange(700) % 128, torch.rand(700) * 20):
            i = i.long()
            grad = torch.randn(width, 700).to(dtype).t()
            wanted = torch.zeros(128, width, dtype=torch.float64).index_add(0, i, grad.double())
            got = torch.ops.aten.embedding_dense_backward(grad.to("mps"), i.int().to("mps"), 128, -1, False)
            tolerance = 1e-4 if dtype == torch.float32 else 2e-2  # one rounding to bfloat16
            torch.testing.assert_close(got.cpu().double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [300, 9375])
def test_embedding_gradient_leaves_out_padding_beyond_the_table(count):
    i = torch.where(torch.rand(count) < 0.3, 259, torch.randint(0, 256, (count,)))
    for width in (3, 8):
        grad = torch.randn(count, width)
        wanted = torch.zeros(256, width).index_add(0, i[i != 259], grad[i != 259])
        got = torch.ops.aten.embedding_dense_backward(grad.to("mps"), i.to("mps"), 256, 259, False)
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)


def test_out_of_range_is_reported_and_the_device_goes_on():
    x = torch.randn(4, 5, device="mps")
    bad = torch.tensor([9], device="mps")
    calls = {
        "index": lambda: x[bad],
        "index_select": lambda: x.index_select(0, bad),
        "gather": lambda: x.gather(0, bad.expand(1, 5)),
        "embedding": lambda: F.embedding(bad, x),
    }
    for name, call in calls.items():
        call()
        with pytest.raises(torch.AcceleratorError, match=name):
            torch.mps.synchronize()
        same(x + 1, x.cpu() + 1)


def test_cat():
    x = [torch.randn(3, n, 5) for n in (2, 1, 0, 7)]
    same(torch.cat([t.to("mps") for t in x], 1), torch.cat(x, 1))
    same(torch.stack([t.to("mps") for t in x[:1] * 40], -1), torch.stack(x[:1] * 40, -1))
    y = [torch.randn(4, 6).t(), torch.randn(6, 9)[:, ::2], torch.zeros(0)]
    same(torch.cat([t.to("mps") for t in y], -1), torch.cat(y, -1))
    mixed = [torch.randn(3), torch.arange(3), torch.ones(2, dtype=torch.bool)]
    same(torch.cat([t.to("mps") for t in mixed]), torch.cat(mixed))
    for dim in range(4):
        sizes = [[3, 4, 5, 6] for _ in range(3)]
        z = []
        for k, s in enumerate(sizes):
            s[dim] += k
            z.append(torch.randn(s).contiguous(memory_format=torch.channels_last))
        wanted, got = torch.cat(z, dim), torch.cat([t.to("mps") for t in z], dim)
        same(got, wanted)
        assert got.stride() == wanted.stride()
    out = torch.empty(6, 4, device="mps").t()
    torch.cat([torch.ones(2, 6, device="mps"), torch.zeros(2, 6, device="mps")], out=out)
    same(out, torch.cat([torch.ones(2, 6), torch.zeros(2, 6)]))


@pytest.mark.parametrize("value", [2.0, torch.tensor(2.0)])
def test_masked_fill(mps, value):
    """With a number and with a tensor of one: the same checks, in the CPU's words."""
    on_device = value.to(mps) if isinstance(value, torch.Tensor) else value
    x, mask = torch.randn(3, 4), torch.tensor([True, False, True, False])
    same(x.to(mps).masked_fill(mask.to(mps), on_device), x.masked_fill(mask, value))
    same(x.t().to(mps).masked_fill_(mask.to(mps)[:, None], on_device), x.t().clone().masked_fill_(mask[:, None], value))
    for other in (mask.to(torch.uint8), mask.long()):
        with pytest.raises(RuntimeError) as wanted:
            x.masked_fill(other, value)
        with pytest.raises(RuntimeError) as got:
            x.to(mps).masked_fill(other.to(mps), on_device)
        assert str(got.value) == str(wanted.value)
    with pytest.raises(RuntimeError, match="on the same device"):
        x.to(mps).masked_fill_(mask, on_device)


@pytest.mark.parametrize("alpha", [True, 0, 1, 2, 256])
def test_index_add_of_bools(alpha, mps):
    """A factor counts as true or false."""
    x, source = torch.tensor([False, True, False]), torch.tensor([True, True, False, True])
    index = torch.tensor([0, 0, 1, 2])
    actual = x.to(mps).index_add(0, index.to(mps), source.to(mps), alpha=alpha)
    assert torch.equal(actual.cpu(), x.index_add(0, index, source, alpha=alpha))


REDUCTIONS = {
    "scatter_reduce": ("sum", "prod", "mean", "amax", "amin"),
    "index_reduce": ("prod", "mean", "amax", "amin"),
    "scatter": ("add", "multiply"),
    "scatter_number": ("add", "multiply"),
    "segment_reduce": ("sum", "prod", "mean", "max", "min"),
}


def reduced(name, reduce, include_self, x, index, src):
    if name == "segment_reduce":
        return torch.segment_reduce(src, reduce, lengths=torch.bincount(index.cpu(), minlength=4).to(x.device))
    if name == "scatter_number":
        return x.scatter(0, index, 3, reduce=reduce)
    if name == "scatter":
        return x.scatter(0, index, src, reduce=reduce)
    return getattr(x, name)(0, index, src, reduce, include_self=include_self)


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16])
@pytest.mark.parametrize(("name", "reduce"), [(n, r) for n, all_of in REDUCTIONS.items() for r in all_of])
def test_every_reduction_of_every_class_of_types(name, reduce, dtype):
    """The CPU's values, or where it refuses its words."""
    x, src = torch.randint(0, 5, (4,)), torch.randint(0, 5, (6,))
    if dtype.is_complex:
        x, src = torch.complex(x.float(), src[:4].float()), torch.complex(src.float(), src.flip(0).float())
    x, src, index = x.to(dtype), src.to(dtype), torch.tensor([0, 0, 0, 1, 3, 3])
    for include_self in (True, False):
        try:
            wanted = reduced(name, reduce, include_self, x, index, src)
        except NotImplementedError as refusal:
            with pytest.raises(NotImplementedError) as raised:
                reduced(name, reduce, include_self, x.to("mps"), index.to("mps"), src.to("mps"))
            assert str(raised.value) == str(refusal)
        else:
            got = reduced(name, reduce, include_self, x.to("mps"), index.to("mps"), src.to("mps"))
            torch.testing.assert_close(got.cpu(), wanted, equal_nan=True)  # the mean of no elements


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("reduce", ["amax", "amin", "sum", "prod"])
def test_reductions_of_unsigned_numbers_order_them_so(dtype, reduce):
    """The CPU has uint8 alone."""
    most = torch.iinfo(dtype).max
    x, src = [most - 1, 1, 2], [3, most, 5]
    f = {"amax": max, "amin": min, "sum": int.__add__, "prod": int.__mul__}[reduce]
    wanted = torch.tensor([f(x[0], src[0]) & most, f(f(x[1], src[1]), src[2]) & most, x[2]], dtype=dtype)
    index = torch.tensor([0, 1, 1], device="mps")
    device = [torch.tensor(v, dtype=dtype, device="mps") for v in (x, src)]
    assert torch.equal(device[0].scatter_reduce(0, index, device[1], reduce).cpu(), wanted)


def test_coordinates_of_a_dimension_lie_together(mps):
    given = torch.eye(5)
    assert given.to(mps).nonzero().stride() == given.nonzero().stride() == (1, 5)
    out = torch.empty(5, 2, dtype=torch.int64, device=mps)
    assert torch.nonzero(given.to(mps), out=out).stride() == (2, 1)
    assert out.tolist() == given.nonzero().tolist()
