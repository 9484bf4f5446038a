"""Sparse tensors in coordinates (COO) on mps beside the CPU."""

from __future__ import annotations

import pytest
import torch
from sparse_tensors import DTYPES, assert_same, both, coordinates, dense, gradients

UNARY = {
    "coalesce": lambda s: s.coalesce(),
    "to_dense": lambda s: s.to_dense(),
    "clone": lambda s: s.clone(),
    "neg": lambda s: -s,
    "abs": lambda s: s.abs(),
    "transpose": lambda s: s.transpose(0, 1),
    "sum": lambda s: torch.sparse.sum(s),
    "sum of a dimension": lambda s: torch.sparse.sum(s, 0),
    "scaled": lambda s: s * 3,
    "to float": lambda s: s.to(torch.complex64 if s.dtype.is_complex else torch.float32),
    "cat": lambda s: torch.cat([s, s], 1),
    "select": lambda s: s[1],
    "narrow": lambda s: s.narrow_copy(0, 1, 3),
    "unsqueeze": lambda s: s.unsqueeze(1),
    "zero_": lambda s: s.clone().zero_(),
    "resize": lambda s: s.clone().sparse_resize_((20, *s.shape[1:]), s.sparse_dim(), s.dense_dim()),
    "copy_": lambda s: torch.zeros_like(s).copy_(s),
    "equal": lambda s: torch.equal(s, s),
    "any": lambda s: (s != s).any() if s.layout == torch.strided else s.bool().any(),
}


@pytest.mark.parametrize("coalesced", [False, True], ids=["any order", "coalesced"])
@pytest.mark.parametrize("size, sparse_dim", [((7, 9), 2), ((7, 5, 4), 1), ((5, 6, 2, 3), 2), ((70, 90), 2)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_tensor(mps, dtype, size, sparse_dim, coalesced):
    sparse = coordinates(size, sparse_dim, 30, dtype, coalesced)
    for name, function in UNARY.items():
        try:
            expected = function(sparse)
        except (RuntimeError, NotImplementedError) as error:
            with pytest.raises(type(error)):
                function(sparse.to(mps))
            continue
        try:
            assert_same(function(sparse.to(mps)), expected)
        except Exception as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("nnz", [0, 1, 3])
def test_few_elements(mps, nnz):
    sparse = coordinates((4, 6), 2, nnz)
    for function in (torch.Tensor.coalesce, torch.Tensor.to_dense, torch.Tensor.t, torch.sparse.sum):
        both(function, sparse)
    both(torch.sparse.mm, sparse, dense(6, 2))
    both(lambda a, b: torch.add(a, b).coalesce(), sparse, coordinates((4, 6), 2, 5))
    for function in (lambda a, b: (a * b).to_dense(), lambda a, b: (b * a).to_dense()):
        both(function, sparse, coordinates((4, 6), 2, 5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("coalesced", [False, True], ids=["any order", "coalesced"])
def test_sums_and_products_of_two(mps, dtype, coalesced):
    a = coordinates((9, 8), 2, 25, dtype, coalesced)
    b = coordinates((9, 8), 2, 20, dtype, True, seed=3)
    for add in (torch.add, torch.sub, lambda x, y: torch.add(x, y, alpha=3), lambda x, y: x.clone().add_(y)):
        # Sums keep the elements of both, as on CUDA; the CPU merges coalesced ones.
        both(lambda x, y, add=add: add(x, y).coalesce(), a, b)
        both(lambda x, y, add=add: add(x, y).to_dense(), a, b)
        assert not add(a.to(mps), b.to(mps)).is_coalesced()
    both(torch.add, dense(9, 8, dtype=dtype), a)
    both(torch.mul, a, b)
    both(torch.mul, b, a)
    both(torch.mul, a, dense(9, 8, dtype=dtype))
    both(torch.sparse.mm, a, dense(8, 5, dtype=dtype))
    both(lambda x, y: torch.mv(x, y), a, dense(8, dtype=dtype))
    both(lambda x, y: x.sparse_mask(y), dense(9, 8, dtype=dtype), b)
    both(lambda x, y: x.sparse_mask(y), a, b)


def test_repeated_sums_stay_bounded(mps):
    """More elements than places are coalesced, and so is a sum that is stored in another dtype."""
    addend = coordinates((4, 5), 2, 9, coalesced=True)

    def sums(s):
        total = torch.zeros_like(s)
        for _ in range(7):
            total.add_(s)
            assert total._nnz() <= total.numel()
        return total.coalesce()

    both(sums, addend)

    def rounded(a, b):
        out = torch.empty(a.shape, dtype=a.dtype, layout=a.layout, device=a.device)
        return torch.add(a, b, out=out)

    both(rounded, torch.full((2, 3), 2.5).bfloat16().to_sparse(), torch.full((2, 3), 0.1).to_sparse())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_products_with_matrices(mps, dtype):
    sparse, other = coordinates((9, 8), 2, 25, dtype), dense(8, 5, dtype=dtype)
    both(lambda s, d, i: torch.sparse.addmm(i, s, d, beta=2, alpha=3), sparse, other, dense(9, 5, dtype=dtype))
    both(lambda s, d, i: torch.addmm(i, s, d, beta=0), sparse, other, torch.full((9, 5), float("nan"), dtype=dtype))
    both(lambda s, d, i: torch.addmm(i, s, d), sparse, other, dense(5, dtype=dtype))
    both(lambda s, d, i: i.addmm_(s, d), sparse, other, dense(9, 5, dtype=dtype))
    both(torch.matmul, sparse, dense(5, 8, dtype=dtype).t())
    both(lambda s, d: torch.hspmm(s, d).coalesce(), sparse, other)
    both(
        lambda s, d, i: torch.sspaddmm(i, s, d, beta=2, alpha=3).to_dense(),
        sparse,
        other,
        coordinates((9, 5), 2, 7, dtype),
    )
    both(torch.bmm, coordinates((3, 9, 8), 3, 60, dtype), dense(3, 8, 5, dtype=dtype))
    both(lambda a, b: torch.sparse.mm(a, b).to_dense(), sparse, coordinates((8, 11), 2, 30, dtype, seed=5))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_selected_indices(mps, dim):
    sparse = coordinates((7, 9, 5), 2, 30)
    index = torch.tensor([3, 0, -1 if dim in (0, 1) else 2, 3, 4])  # dense dimensions take none from behind
    both(lambda s, i: s.index_select(dim, i).to_dense(), sparse, index)
    both(lambda s, i: s.index_select(dim, i).to_dense(), sparse, index[:0])
    with pytest.raises(IndexError, match="must be 1-D strided"):
        sparse.to(mps).index_select(dim, index.int().to(mps))


@pytest.mark.parametrize("function", [torch.sparse.softmax, torch.sparse.log_softmax])
@pytest.mark.parametrize(
    "size, sparse_dim, dim", [((6, 7), 2, 1), ((6, 7), 2, 0), ((6, 4, 3), 2, 1), ((6, 4, 3), 2, 2), ((9,), 1, 0)]
)
def test_softmax(mps, function, size, sparse_dim, dim):
    sparse = coordinates(size, sparse_dim, 12, coalesced=True)
    both(lambda s: function(s, dim), sparse)
    both(lambda s: gradients(lambda leaf: function(leaf, dim), s), sparse)
    other = coordinates(size, sparse_dim, 7, coalesced=True, seed=4)

    def gradient_in_other_places(s, o):
        leaf = s.detach().requires_grad_()
        function(leaf, dim).backward(o)
        return leaf.grad.coalesce()

    both(gradient_in_other_places, sparse, other)


@pytest.mark.parametrize("function", [torch.sparse.softmax, torch.sparse.log_softmax])
def test_softmax_of_integers(mps, function, raises_as_on_the_cpu):
    for factor in (1, 0):  # with elements and without
        raises_as_on_the_cpu(lambda ones, factor=factor: function(ones(3, 3).long().mul(factor).to_sparse(), 0))


def test_errors_of_products(mps):
    sparse, matrix = coordinates((4, 6), 2, 5), torch.ones(6, 2)
    for function, wrong in [
        (torch.sparse.mm, torch.ones(5, 2)),
        (torch.mm, torch.ones(6, 2, dtype=torch.int32)),
        (torch.hspmm, torch.ones(5, 2)),
        (torch.bmm, torch.ones(1, 6, 2)),
        (lambda s, d: torch.addmm(torch.ones(3, 2).to(s.device), s, d), matrix),
    ]:
        with pytest.raises(RuntimeError) as expected:
            function(sparse, wrong)
        with pytest.raises(RuntimeError) as actual:
            function(sparse.to(mps), wrong.to(mps))
        assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_an_index_out_of_range_is_an_error(mps):
    indices = torch.tensor([[0, 1], [2, 9]])
    with pytest.raises(RuntimeError, match="size is inconsistent with indices: for dim 1, size is 3 but found index 9"):
        torch.sparse_coo_tensor(indices.to(mps), torch.ones(2, device=mps), (2, 3), check_invariants=True)


@pytest.mark.parametrize(
    "function, size",
    [
        (torch.sparse.mm, (6, 2)),
        (lambda s, d: torch.sparse.addmm(d.sum(), s, d), (6, 2)),
        (lambda s, d: s * d.sum(), (6, 2)),
        (lambda s, d: s.to_dense() @ d, (6, 2)),
        (lambda s, d: torch.sparse.sum(s * 2, 0).to_dense() + d.sum(), (6, 2)),
        (lambda s, d: torch.sparse.sum(s) * d.sum(), (6, 2)),
    ],
    ids=["mm", "addmm", "mul", "to_dense", "sum of a dimension", "sum"],
)
@pytest.mark.parametrize("coalesced", [False, True], ids=["any order", "coalesced"])
def test_gradients(mps, function, size, coalesced):
    sparse = coordinates((4, 6), 2, 9, coalesced=coalesced)
    both(lambda s, d: gradients(function, s, d), sparse, dense(*size))


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_training_of_a_sparse_embedding(mps, optimizer):
    indices = torch.randint(50, (4, 12), generator=torch.Generator().manual_seed(0))

    def train(device):
        torch.manual_seed(0)
        layer = torch.nn.Embedding(50, 8, sparse=True, padding_idx=3).to(device)
        steps = optimizer(layer.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            layer(indices.to(device)).square().sum().backward()
            assert layer.weight.grad.is_sparse
            steps.step()
        return layer.weight.detach()

    torch.testing.assert_close(train(mps).cpu(), train("cpu"))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradient_of_a_sparse_embedding_bag(mps, mode):
    indices = torch.randint(20, (15,), generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, 4, 9])

    def gradient(weight):
        leaf = weight.detach().requires_grad_()
        torch.nn.functional.embedding_bag(
            indices.to(leaf.device), leaf, offsets.to(leaf.device), mode=mode, sparse=True
        ).square().sum().backward()
        return leaf.grad.coalesce()

    both(gradient, dense(20, 3))


def test_moves_prints_and_pickles(mps):
    import io

    sparse = coordinates((4, 6), 2, 9)
    moved = sparse.to(mps)
    assert moved.device == torch.device("mps:0") and moved.is_sparse and "layout=torch.sparse_coo" in repr(moved)
    buffer = io.BytesIO()
    torch.save(moved, buffer)
    buffer.seek(0)
    assert_same(torch.load(buffer), sparse)
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu").device.type == "cpu"
    assert_same(dense(4, 6).to(mps).to_sparse(), dense(4, 6).to_sparse())
    module = torch.nn.Module()
    module.register_buffer("adjacency", sparse)
    assert_same(module.to(mps).adjacency, sparse)


def test_a_large_product(mps):
    sparse = coordinates((3000, 2000), 2, 60000)
    both(torch.sparse.mm, sparse, dense(2000, 33))
    both(torch.mv, sparse, dense(2000))
    both(torch.Tensor.coalesce, sparse)


@pytest.mark.parametrize("places", [1, 7, 3000, 100_000])
@pytest.mark.parametrize("size", [(), (5,)], ids=["numbers", "rows"])
def test_many_elements_of_few_places(mps, places, size):
    """Runs that go over many chunks of the elements, and runs of one."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(places, (1, 40_000), generator=generator)
    values = torch.randint(-8, 9, (40_000, *size), generator=generator).float()
    both(torch.Tensor.coalesce, torch.sparse_coo_tensor(indices, values, (places, *size), check_invariants=False))


@pytest.mark.parametrize("layout", [None, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_matrices_of_diagonals(mps, layout):
    offsets = torch.tensor([0, 2, -3, 1])
    for length, shape in [(6, (6, 6)), (4, (6, 6)), (6, (9, 6))]:
        both(lambda d, o, s=shape: torch.sparse.spdiags(d, o, s, layout), dense(4, length), offsets)
    both(lambda d, o: torch.sparse.spdiags(d, o, (4, 4), layout), dense(3), torch.tensor(1))


@pytest.mark.parametrize("length, shape", [(7, (2, 5)), (7, (5, 2)), (7, (1, 1)), (7, (9, 12)), (1, (4, 4))])
def test_diagonals_end_where_the_matrix_does(mps, length, shape):
    """The CPU writes beyond its memory here: the reference is written out."""
    diagonals, offsets = dense(5, length), [0, 1, -2, 6, -11]
    expected = torch.zeros(shape)
    for values, offset in zip(diagonals, offsets, strict=True):
        for column in range(length):
            row = column - offset
            if 0 <= row < shape[0] and column < shape[1]:
                expected[row, column] = values[column]
    actual = torch.sparse.spdiags(diagonals.to(mps), torch.tensor(offsets).to(mps), shape)
    assert torch.equal(actual.to_dense().cpu(), expected)


@pytest.mark.parametrize(
    "shapes, match",
    [
        (((2, 3), (3,), (4, 4)), "does not match the number of offsets"),
        (((2, 3), (2,), (4,)), "Output shape must be 2d"),
        (((2, 3, 1), (2,), (4, 4)), "Diagonals must be vector or matrix"),
    ],
)
def test_errors_of_diagonals(mps, shapes, match):
    for device in ("cpu", mps):
        with pytest.raises(RuntimeError, match=match):
            offsets = torch.arange(shapes[1][0], device=device)
            torch.sparse.spdiags(torch.ones(shapes[0], device=device), offsets, shapes[2])
        with pytest.raises(RuntimeError, match="contains duplicate values"):
            torch.sparse.spdiags(
                torch.ones(2, 3, device=device), torch.zeros(2, dtype=torch.long, device=device), (4, 4)
            )


def test_repeated_places_are_not_coalesced(mps):
    indices = torch.tensor([[0, 0, 1], [2, 2, 0]])
    values = torch.ones(3)
    for device in ("cpu", mps):
        with pytest.raises(RuntimeError, match="cannot set is_coalesced to true if indices correspond to uncoalesced"):
            torch.sparse_coo_tensor(
                indices.to(device), values.to(device), (2, 3), is_coalesced=True, check_invariants=True
            )
    ascending = torch.tensor([[0, 0, 1], [1, 2, 0]]).to(mps)
    tensor = torch.sparse_coo_tensor(ascending, values.to(mps), (2, 3), is_coalesced=True, check_invariants=True)
    assert tensor.is_coalesced() and tensor.to_dense().sum().item() == 3
    with torch.sparse.check_sparse_tensor_invariants():
        both(lambda s: s.narrow_copy(1, 0, 2), coordinates((4, 5), 2, 9, coalesced=True))
        both(lambda s: torch._sparse_broadcast_to(s, (3, 4, 5)), coordinates((4, 1), 2, 3, coalesced=True))
