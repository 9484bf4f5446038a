"""Reads and writes by index in generated kernels, and indices that are out of range."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees
from torch._inductor.utils import fresh_cache
from torch.testing import assert_close


@pytest.mark.parametrize("dynamic", [None, True])
def test_reads(mps, dynamic):
    compiled_agrees(
        lambda t, i, j: (t[i], t[:, j].sum(1, keepdim=True), torch.gather(t, 1, i[:, None]), F.embedding(i, t) * 2),
        torch.randn(50, 40),
        torch.randint(0, 40, (33,)),
        torch.randint(-40, 40, (7,)),
        dynamic=dynamic,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_sums_into_memory(mps, dtype):
    t, s = torch.zeros(50, 40).to(dtype), torch.randint(-3, 4, (200, 40)).to(dtype)
    i = torch.randint(0, 50, (200,))
    compiled_agrees(lambda t, i, s: (t.index_add(0, i, s), t.scatter_add(0, i[:, None].expand_as(s), s)), t, i, s)


@pytest.mark.parametrize("shape", [(5, 10), (13, 300), (1, 4000), (333, 7)])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_into_memory_beside_reductions(mps, dim, shape):
    """Added once, though several threads have a row's sum, and threads without a row repeat the last one."""
    rows = shape[1 - dim]

    def sums(t, i, x):
        row = x.sum(dim)
        return t.index_add(0, i, row), t.index_add(0, i, x.movedim(dim, 1).cos().sum(1) - row), row

    def elements(t, j, x):
        return x.mean(dim), torch.zeros_like(x).scatter_add(dim, j, x), x.amax(dim)

    x = torch.randn(shape)
    compiled_agrees(sums, torch.randn(9), torch.randint(0, 9, (rows,)), x, tolerance=1e-4)
    compiled_agrees(elements, torch.randn(9), torch.randint(0, shape[dim], shape), x, tolerance=1e-4)
    i = torch.randint(0, shape[1], (shape[0],))
    compiled_agrees(F.multi_margin_loss, x.clone().requires_grad_(), i, backward=True)


def test_writes(mps):
    i = torch.randperm(50)[:20]
    compiled_agrees(
        lambda t, i, s: (t.index_put((i,), s), t.index_copy(0, i, s), t.scatter(0, i[:, None].expand_as(s), s)),
        torch.randn(50, 40),
        i,
        torch.randn(20, 40),
    )


def test_embedding_backward(mps):
    weight = torch.randn(30, 16, requires_grad=True)
    compiled_agrees(lambda w, i: F.embedding(i, w).sin(), weight, torch.randint(0, 30, (9, 11)), backward=True)


def test_cross_entropy(mps):
    x = torch.randn(64, 30, requires_grad=True)
    compiled_agrees(lambda x, t: F.cross_entropy(x, t), x, torch.randint(0, 30, (64,)), backward=True)


def test_out_of_range_raises_at_the_next_synchronization(mps):
    compiled = torch.compile(lambda t, i: t[i] + 1)
    t = torch.randn(50, 4, device=mps)
    compiled(t, torch.tensor([0, 49], device=mps))
    torch.mps.synchronize()
    compiled(t, torch.tensor([0, 50], device=mps))
    with pytest.raises(torch.AcceleratorError, match="out of bounds"):
        torch.mps.synchronize()


@pytest.mark.parametrize("include_last", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mps, mode, include_last):
    """The operator's results have the sizes that PyTorch's meta function promises."""
    indices, offsets = torch.tensor([0, 1, 2, 3, 1, 4]), torch.tensor([0, 2, 2, 6] if include_last else [0, 2, 2])

    def function(weight, indices, offsets):
        return torch.nn.functional.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=include_last)

    compiled_agrees(function, torch.randn(6, 4, requires_grad=True), indices, offsets, backward=True)


def narrowed(i):
    """Positions as dtypes that cannot hold them all."""
    yield i.bool().long()
    yield (i - 8).to(torch.uint8) // 2
    yield ((i * 20).to(torch.int8) > 0).long()
    yield i.to(torch.uint8).float()
    yield (i * 100).half().long()
    yield i.bfloat16().long()
    yield (i * 2**20).float().long() + 1
    yield (i * 100_000_000).int().long()


def wide(i):
    """Products of positions that need more than 32 bits."""
    yield i * 100_000_000
    yield (i * 2654435761) % 1000003
    yield (i - 500) * 10_000_000 // 7
    yield (i * 10_000_019).clamp(max=5 * 10**9)
    yield (i * 10_000_000).float()
    yield i.view(-1, 1) * i[:3] * 10_000_019


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("values", [narrowed, wide])
def test_positions_as_values(mps, values, dynamic):
    """Inductor knows positions without computing them; what a dtype makes of them it must not leave out."""

    def function(x):
        return [v + x[0] for v in values(torch.arange(x.numel(), device=x.device))]

    compiled_agrees(function, torch.zeros(1000, dtype=torch.long), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_elements_at_products_of_positions(mps, dynamic):
    """Of more than 32 bits before a remainder brings them into range."""

    def function(x):
        i = torch.arange(x.numel(), device=x.device)
        return [x[(i * 10_000_019) % 1000], x.gather(0, i * 10_000_000 // 7 % 1000), x[(i * 3 + 1) % 1000]]

    compiled_agrees(function, torch.randn(1000), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
def test_positions_beside_indices_that_are_read(mps, dynamic):
    def sums(x, index):
        positions = torch.linspace(0, 1, x.shape[0], device=x.device)
        return positions.scatter_add(0, index, positions), torch.arange(x.shape[0], device=x.device)[index] * 2

    compiled_agrees(sums, torch.randn(13), torch.randint(0, 13, (13,)), dynamic=dynamic)


def test_a_narrow_range_wraps(mps):
    """arange of uint8, in arithmetic beyond 255."""

    def function(x):
        i = torch.arange(16, device=x.device, dtype=torch.uint8)
        return [torch.logical_and(x, i + 250), (i + 250) // 7, (i * 20).float(), torch.where((i - 5).bool(), 1, 2)]

    compiled_agrees(function, torch.ones(16, dtype=torch.bool))


def test_a_tensor_is_written_with_a_view_of_itself(mps):
    """Inductor drops the clones; no element may be read after it is written."""
    compiled_agrees(
        lambda x, y: (x[1:].copy_(x[:-1].clone()), y[:, 3:].copy_(y[:, :-3].clone()) + 1),
        torch.arange(999.0), torch.arange(90.0).view(3, 30),
    )  # fmt: skip


def test_a_tensor_is_written_twice_by_views_that_overlap(mps):
    """What reads between the writes sees the first one only, at whatever elements."""

    def function(x):
        first, last = x[:40], x[20:]
        first.add_(1)
        between = first + last
        last.mul_(2)
        return between, first * last

    compiled_agrees(function, torch.randn(60, 3))


def test_lists_of_tensors_are_written_after_others_have_read_them(mps):
    """A step of SGD with momentum and weight decay."""

    def step(weights, grads, momenta):
        grads = torch._foreach_add(grads, weights, alpha=0.1)
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, grads)
        torch._foreach_add_(weights, momenta, alpha=-0.1)

    compiled_agrees(step, *([torch.randn(3, 4)] for _ in range(3)))


def test_a_tensor_is_written_transposed_after_others_have_read_it(mps):
    """Loops of what is written get another order when they are fused, in which reads are no longer the writes' own."""

    def function(x, y):
        result = x.sin()
        z = result + y
        y.add_(x)
        x.mul_(y)
        y.copy_(z.t())
        return result

    compiled_agrees(function, torch.randn(40, 40), torch.randn(40, 40))


def test_cached_graphs_differ_by_the_memory_that_arguments_share(mps):
    def function(x, y):
        x.add_(1)
        return x * y

    def halves(n, m):
        return lambda t: (t[n : n + 2], t[m : m + 2])

    with fresh_cache():
        for views in (halves(0, 0), halves(2, 2), halves(2, 0), lambda t: (t[:2], t[2:].clone())):
            torch._dynamo.reset()  # what the cache has, it gives again
            wanted = torch.randn(4, 4)
            actual = wanted.to(mps)
            assert_close(torch.compile(function)(*views(actual)).cpu(), function(*views(wanted)))
            assert_close(actual.cpu(), wanted)


def _onto_itself(x, i):
    return x.index_put_((i,), x.clone(), accumulate=True) * 2


def _onto_its_transpose(x, i):
    return x[i.sort()[0]].index_put_((i,), x.t().clone()), x.index_put_((i,), x.t().clone())


def _onto_a_result(x, i):
    y = x * 2
    y[1:].index_add_(0, i[:-1] % (x.shape[0] - 1), y[:-1].clone())
    y.index_put_((i,), y.clone())
    return y


def _positions_of_itself(x, i):
    j = i * 1
    j.index_put_((j.clone(),), torch.ones_like(j), accumulate=True)
    i[i.clone()] = i.flip(0)
    return i.clone(), j


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64))
@pytest.mark.parametrize("function", (_onto_itself, _onto_its_transpose, _onto_a_result, _positions_of_itself))
def test_what_is_indexed_is_written_with_what_it_was(mps, function, dtype):
    """Inductor drops the clones, and kernels would read elements that others have written."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(67, 67, generator=generator).mul(4).to(dtype)
    compiled_agrees(function, x, torch.randperm(67, generator=generator))
