"""Calls at the edge of what operators take: results, warnings and errors are the CPU's."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, same_outcome

NAN = float("nan")
VALUES = (1e10, 1e39, float("inf"), NAN, 300, -1, 2**40, 2**63, 1j, 1 + 0j, True, 2.5, 70000.0)
DTYPES = (
    torch.float32, torch.half, torch.bfloat16, torch.complex64,
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool,
)  # fmt: skip


def long(device, *values):
    return torch.tensor(values, dtype=torch.long, device=device)


def mask(device):
    return torch.tensor([True, False, True], device=device)


def assigned(x, key, value):
    x[key] = value
    return x


FILLS = {
    "fill_": lambda x, v: x.fill_(v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "masked_fill": lambda x, v: x.masked_fill(mask(x.device), v),
    "index_fill": lambda x, v: x.index_fill(0, long(x.device, 1), v),
    "setitem": lambda x, v: assigned(x, 1, v),
    "setitem of a mask": lambda x, v: assigned(x, mask(x.device), v),
    "scatter": lambda x, v: x.scatter(0, long(x.device, 1), v),
    "fill_diagonal_": lambda x, v: x.expand(3, 3).clone().fill_diagonal_(v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_that_overflow_or_are_complex(fill, dtype, mps):
    for value in VALUES:
        if value != value and not dtype.is_floating_point:
            continue  # C++ leaves open which integer a NaN becomes
        same_outcome(lambda device, v=value: FILLS[fill](torch.zeros(3, dtype=dtype, device=device), v))


@pytest.mark.parametrize("value", [1j, 2.5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fills_by_a_tensor(value, dtype, mps):
    for name in ("fill_", "masked_fill", "index_fill"):
        same_outcome(
            lambda device, f=FILLS[name]: f(
                torch.zeros(3, dtype=dtype, device=device), torch.tensor(value, device=device)
            )
        )


EXPANDED = {
    "masked_fill_": lambda x: x.masked_fill_(mask(x.device), 1),
    "masked_fill_ by a tensor": lambda x: x.masked_fill_(mask(x.device), x.new_tensor(2)),
    "masked_scatter_": lambda x: x.masked_scatter_(mask(x.device), x.new_ones(12)),
    "index_fill_": lambda x: x.index_fill_(1, long(x.device, 1), 2),
    "index_put_": lambda x: x.index_put_((long(x.device, 1),), x.new_tensor(2)),
    "index_copy_": lambda x: x.index_copy_(1, long(x.device, 1), x.new_ones(4, 1)),
    "index_add_": lambda x: x.index_add_(1, long(x.device, 1), x.new_ones(4, 1)),
    "scatter_": lambda x: x.scatter_(1, long(x.device, 0).expand(4, 1), 1),
    "put_": lambda x: x.put_(long(x.device, 0), x.new_ones(1)),
    "fill_": lambda x: x.fill_(2),
    "zero_": lambda x: x.zero_(),
    "add_": lambda x: x.add_(1),
    "copy_": lambda x: x.copy_(x.new_ones(4, 3)),
}


@pytest.mark.parametrize("name", EXPANDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_writes_into_expanded_memory(name, dtype, mps):
    same_outcome(lambda device: EXPANDED[name](torch.zeros(1, 3, dtype=dtype, device=device).expand(4, 3)))


def one(x, *sizes, dtype=torch.float32):
    """Memory of one element, expanded."""
    return torch.zeros(1, dtype=dtype, device=x.device).expand(*sizes)


def place(x, *sizes, dtype=torch.int64):
    return torch.empty(sizes, dtype=dtype, device=x.device)


# Not adaptive pools, with which the CPU's own kernels write beyond the element.
RESULTS = {
    "max": lambda x: torch.max(x[0, 0], 1, out=(one(x, 6), place(x, 6))),
    "max, indices": lambda x: torch.max(x[0, 0], 1, out=(x.new_empty(6), one(x, 6, dtype=torch.int64))),
    "min": lambda x: torch.min(x[0, 0], 1, out=(one(x, 6), place(x, 6))),
    "aminmax": lambda x: torch.aminmax(x[0, 0], dim=1, out=(x.new_empty(6), one(x, 6))),
    "avg_pool2d": lambda x: torch._C._nn.avg_pool2d(x, 2, out=one(x, 1, 1, 3, 4)),
    "max_pool2d": lambda x: torch._C._nn.max_pool2d_with_indices(x, 2, out=(one(x, 1, 1, 3, 4), place(x, 1, 1, 3, 4))),
    "upsample_nearest2d": lambda x: torch._C._nn.upsample_nearest2d(x, [3, 4], None, out=one(x, 1, 1, 3, 4)),
}
RESULTS |= {
    "mean": lambda x: torch.mean(x[0, 0], 1, out=one(x, 6)),
    "logsumexp": lambda x: torch.logsumexp(x[0, 0], 1, out=one(x, 6)),
    "addmv": lambda x: torch.addmv(x[0, 0, :, 0], x[0, 0], x[0, 0, 0], out=one(x, 6)),
    "addbmm": lambda x: torch.addbmm(x[0, 0, :, :6], x[0], x[0].mT, out=one(x, 6, 6)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_into_expanded_memory(name, mps):
    same_outcome(lambda device: RESULTS[name](torch.ones(1, 1, 6, 8, device=device)))


INTO_THE_INPUT = {
    "a row": lambda x: x[0],
    "a column": lambda x: x[:, 1],
    "what begins in the last row": lambda x: x.as_strided((3,), (1,), 7),
}
# With one result the CPU's own kernels write while they read.
SINGLE = ("sum", "nansum", "mean", "prod", "amax", "amin", "logsumexp", "norm", "var", "std")
SEVERAL = ("max", "min", "median", "nanmedian", "mode")


@pytest.mark.parametrize("place_", INTO_THE_INPUT)
@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL, "aminmax"])
def test_reductions_into_what_they_reduce(name, place_, mps):
    def call(device, apart):
        x = torch.arange(12.0, device=device)
        source, out = x[:9].view(3, 3), INTO_THE_INPUT[place_](x[:9].view(3, 3))
        source = source.clone() if apart else source
        if name in SINGLE:
            return getattr(torch, name)(source, **({"p": 3} if name == "norm" else {}), dim=1, out=out), x
        other = out.new_empty(3, dtype=torch.float32 if name == "aminmax" else torch.int64)
        return *getattr(torch, name)(source, dim=1, out=(out, other)), x

    if name in SINGLE:
        for got, want in zip(call(mps, False), call(mps, True), strict=True):
            assert torch.equal(got, want)
    elif place_ != "a column":  # which the CPU cannot tell from memory beside it
        same_outcome(lambda device: call(device, False))


SCANS = ("cumsum", "cumprod", "logcumsumexp")
OVERLAPS = {
    "shifted": lambda x: (x[:9].view(3, 3), x[1:10].view(3, 3)),
    "transposed": lambda x: (x[:9].view(3, 3), x[:9].view(3, 3).t()),
    "expanded": lambda x: (x[:9].view(3, 3), x[9:].expand(3, 3)),
    "itself": lambda x: (x[:9].view(3, 3), x[:9].view(3, 3)),
    "beside": lambda x: (x[:4].view(2, 2), x[4:8].view(2, 2)),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_scans_into_memory_that_they_read(name, overlap, mps):
    def call(device):
        x = torch.arange(10.0, device=device)
        source, out = OVERLAPS[overlap](x)
        getattr(torch, name)(source, 1, out=out)
        return x.to(torch.int32)

    same_outcome(call)


FACTORIES = {
    "arange": lambda out: torch.arange(3, out=out),
    "arange, resized": lambda out: torch.arange(4, out=out),
    "range": lambda out: torch.range(0, 2, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 3, out=out),
    "logspace": lambda out: torch.logspace(0, 1, 3, out=out),
    "eye": lambda out: torch.eye(3, out=out.expand(3, 3)),
    "full": lambda out: torch.full((3,), 1.0, out=out),
    "ones": lambda out: torch.ones(3, out=out),
    "zeros": lambda out: torch.zeros(3, out=out),
    "rand": lambda out: torch.rand(3, out=out).shape,
    "randn": lambda out: torch.randn(3, out=out).shape,
    "randint": lambda out: torch.randint(3, (3,), out=out).shape,
    "normal": lambda out: torch.normal(0.0, 1.0, (3,), out=out).shape,
    "bernoulli": lambda out: torch.bernoulli(torch.ones(3, device=out.device), out=out),
    "tril": lambda out: torch.tril(torch.ones(3, 3, device=out.device), out=out.expand(3, 3)),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_factories_into_memory_that_overlaps(name, mps):
    same_outcome(lambda device: FACTORIES[name](torch.zeros(1, device=device).expand(3)))


def test_randperm_refuses_memory_that_overlaps(mps):
    """The CPU writes one element three times."""
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        torch.randperm(3, out=torch.zeros(1, dtype=torch.long, device=mps).expand(3))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 100])
@pytest.mark.parametrize("ends", [(-(2**63), 2**63 - 1), (0, 2**63 - 1), (2**62, 2**63 - 1), (2**63 - 1, -(2**63))])
def test_linspace_of_int64_over_its_whole_range(ends, steps, mps):
    """Every step is rounded to zero from the nearer end, without wrapping as the CPU's last ones do."""
    got = torch.linspace(*ends, steps, dtype=torch.long, device=mps).tolist()
    first, last = ends
    assert got[0] == first and (steps == 1 or got[-1] == last)
    for i, value in enumerate(got):
        exact = first if steps == 1 else first + (last - first) * i / (steps - 1)
        assert abs(value - exact) <= 2048  # of the float beside it


@pytest.mark.parametrize(("rows", "inner", "outer"), [(0, 4, 3), (5, 0, 3), (5, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_of_size_0(rows, inner, outer, bias, mps):
    weight, offset = torch.randn(outer, inner), torch.randn(outer)
    for shape in ((rows, inner), (2, rows, inner)):
        agree(F.linear, torch.randn(shape), weight, *([offset] if bias else []))


@pytest.mark.parametrize("rows", [(4,), (2, 2), (2, 2, 2), (1, 2, 1), (2, 0), ()])
@pytest.mark.parametrize("bias", [(), (1,), (3,), (2, 3), (1, 3), (4, 3), (8, 3), (2, 1, 3), (2, 2, 1)])
def test_linear_with_a_bias_of_any_shape(rows, bias, mps):
    """It is broadcast over the rows as they are, not over all of them in one dimension."""
    if len(rows) == 1 and len(bias) > 2:
        return  # the error names torch.FloatTensor, or MPSFloatType
    x, w, b = (torch.randint(-3, 4, shape).float() for shape in ((*rows, 8), (3, 8), bias))
    same_outcome(lambda device: F.linear(x.to(device), w.to(device), b.to(device)))

    def gradients(device):
        leaves = [t.to(device, copy=True).requires_grad_() for t in (x, w, b)]
        return torch.autograd.grad(F.linear(*leaves).square().sum(), leaves)

    same_outcome(gradients)


INDEXED = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_fill": lambda x, i: x.index_fill(0, i, 7),
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: assigned(x, i, 7),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_0_and_1_dimension(name, mps):
    for values in (1, [1], [2, 0], []):
        for dtype in (torch.long, torch.int32):
            index = torch.tensor(values, dtype=dtype)
            same_outcome(lambda device, i=index: INDEXED[name](torch.arange(3.0, device=device), i.to(device)))


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("values", [1, [1], []], ids=str)
def test_an_index_on_the_cpu(name, values, mps):
    """Indexing takes it along, as PyTorch has it; index_select and index_fill want it on the device, as on CUDA."""
    index = torch.tensor(values, dtype=torch.long)
    if name in ("index", "index_put"):
        same_outcome(lambda device: INDEXED[name](torch.arange(3.0, device=device), index))
        return
    if name == "index_fill" and values == []:
        return  # PyTorch's TensorIterator is not asked
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        INDEXED[name](torch.arange(3.0, device=mps), index)


def empty(device, *shape):
    return torch.empty(shape, device=device)


OUT_OF_NOTHING = {
    "index": lambda d: empty(d, 0, 3)[long(d, 0)],
    "index of columns": lambda d: empty(d, 2, 0)[:, long(d, 0)],
    "index of no indices": lambda d: empty(d, 0, 3)[long(d)],
    "select": lambda d: empty(d, 0, 3)[0],
    "index_select of a vector": lambda d: empty(d, 0).index_select(0, long(d, 0)),
    "index_select": lambda d: empty(d, 0, 3).index_select(0, long(d, 0)),
    "index_select of columns": lambda d: empty(d, 3, 0).index_select(1, long(d, 2)),
    "index_select of no columns": lambda d: empty(d, 0, 3).index_select(1, long(d, 0)),
    "index_select of no indices": lambda d: empty(d, 0, 3).index_select(0, long(d)),
    "index_select of nothing": lambda d: empty(d, 0, 0).index_select(0, long(d, 0)),
    "embedding": lambda d: F.embedding(long(d, 0), empty(d, 0, 3)),
    "gather": lambda d: empty(d, 0, 2).gather(0, long(d, 1, 2).view(1, 2)),
    "gather of columns": lambda d: empty(d, 3, 0).gather(1, long(d, 5).view(1, 1)),
    "take": lambda d: empty(d, 0).take(long(d, 0)),
    "put_": lambda d: empty(d, 0).put_(long(d, 0), torch.ones(1, device=d)),
    "scatter": lambda d: empty(d, 0).scatter(0, long(d, 3), 1.0),
    "scatter_add": lambda d: empty(d, 0).scatter_add(0, long(d, 3), torch.ones(1, device=d)),
    "scatter_reduce": lambda d: empty(d, 0).scatter_reduce(0, long(d, 3), torch.ones(1, device=d), "amax"),
    "index_add of a vector": lambda d: empty(d, 0).index_add(0, long(d, 0), torch.ones(1, device=d)),
    "index_add": lambda d: empty(d, 0, 3).index_add(0, long(d, 0), torch.ones(1, 3, device=d)),
}


@pytest.mark.parametrize("name", OUT_OF_NOTHING)
def test_an_index_into_an_empty_dimension(name, mps):
    same_outcome(OUT_OF_NOTHING[name])


def test_an_assignment_into_an_empty_dimension(mps):
    """From 2.15 on the CPU speaks of its storage."""
    for device in ("cpu", mps):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            assigned(empty(device, 0, 3), long(device, 0), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.half, torch.bfloat16], ids=str)
def test_unique_with_nan(dtype, mps):
    x = torch.tensor([[NAN, 1], [1, NAN], [NAN, 1], [2, 3], [1, 2], [NAN, NAN], [1, NAN], [1, 2]], dtype=dtype)
    options = {"return_inverse": True, "return_counts": True}
    for dim in (None, 0, 1):
        same_outcome(lambda device, d=dim: torch.unique(x.to(device), dim=d, **options))
        same_outcome(lambda device, d=dim: torch.unique_consecutive(x.to(device), dim=d, **options))


def test_unique_keeps_the_first_of_equal_rows(mps):
    """Zeros of both signs are equal."""
    x = torch.where(torch.rand(4000, 2) < 0.5, 0.0, -0.0).to(mps)
    for _ in range(5):
        assert torch.equal(torch.unique(x, dim=0).cpu().signbit(), x[:1].cpu().signbit())


def sorted_into(device, x, values, indices, **options):
    return torch.sort(x.to(device), out=(values.to(device, copy=True), indices.to(device)), **options)


@pytest.mark.parametrize("stable", [None, False, True])
def test_sort_into_given_tensors(stable, mps):
    x = torch.randperm(20).view(4, 5).float()
    whole = torch.empty(5, 4).t(), torch.empty(5, 4, dtype=torch.long).t()
    for values, indices in (
        (torch.empty(0), torch.empty(0, dtype=torch.long)),
        whole,
        (torch.empty(0, dtype=torch.half), torch.empty(0, dtype=torch.long)),
        (torch.empty(0), torch.empty(0, dtype=torch.int)),
    ):
        for dim in (0, 1):
            for descending in (False, True):
                options = {"stable": stable, "dim": dim, "descending": descending}
                same_outcome(lambda device, v=values, i=indices, o=options: sorted_into(device, x, v, i, **o))
    ties = torch.randint(0, 3, (300,))
    same_outcome(lambda device: sorted_into(device, ties, ties, torch.empty(300, dtype=torch.long), stable=True))


def test_histogramdd_of_no_dimensions(mps):
    for points in (torch.rand(5, 0), torch.rand(0, 0), torch.rand(2, 2, 0), torch.rand(5)):
        for density in (False, True):
            same_outcome(lambda device, x=points, d=density: torch.histogramdd(x.to(device), bins=[], density=d))
        weight = torch.rand(points.shape[:-1])
        same_outcome(lambda device, x=points, w=weight: torch.histogramdd(x.to(device), bins=[], weight=w.to(device)))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 0)])
def test_distances_without_elements(shape, mps):
    """The gradient of pdist, with which the CPU crashes, is of nothing."""
    for p in (0.0, 1.0, 2.0, 3.5, float("inf")):
        same_outcome(lambda device, q=p: torch.pdist(torch.zeros(shape, device=device), q))
        agree(lambda x, y, q=p: torch.cdist(x, y, q), torch.randn(shape), torch.randn(2, shape[1]))
        x = torch.zeros(shape, device=mps, requires_grad=True)
        distances = torch.pdist(x, p)
        (gradient,) = torch.autograd.grad(distances, x, torch.ones_like(distances))
        assert gradient.shape == x.shape
    torch.mps.synchronize()


# Any byte but 0 is true, as in a mask that is a view of uint8.
OF_BOOL = {
    "sort": lambda a, b, i: a.sort(dim=0, stable=True)[1],
    "argsort of a long row": lambda a, b, i: a.repeat(1000, 1).flatten().argsort(stable=True),
    "sort descending": lambda a, b, i: a.sort(dim=1, stable=True, descending=True)[1],
    "scatter_add": lambda a, b, i: a.scatter_add(0, i, b).int(),
    "scatter_reduce prod": lambda a, b, i: a.scatter_reduce(0, i, b, "prod").int(),
    "scatter_reduce amax": lambda a, b, i: a.scatter_reduce(0, i, b, "amax").int(),
    "scatter_reduce amin": lambda a, b, i: a.scatter_reduce(0, i, b, "amin").int(),
    "index_add": lambda a, b, i: a.index_add(0, i[:, 0], b).int(),
    "index_put accumulate": lambda a, b, i: a.index_put((i[:, 0],), b, accumulate=True).int(),
}


@pytest.mark.parametrize("name", OF_BOOL)
def test_bool_of_other_bytes_than_1(name):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(0, 6, (3, 6, 5), generator=generator)
    a, b = torch.tensor([0, 0, 1, 2, 128, 255], dtype=torch.uint8)[draws[:2]]
    agree(lambda a, b, i: OF_BOOL[name](a.view(torch.bool), b.view(torch.bool), i), a, b, draws[2], backward=False)
