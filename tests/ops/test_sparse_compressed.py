"""Sparse tensors in compressed rows and columns (CSR, CSC, BSR, BSC) on mps beside the CPU."""

from __future__ import annotations

import pytest
import torch
from sparse_tensors import DTYPES, assert_same, both, coordinates, dense, gradients

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


def compressed(layout, size=(6, 8), nnz=14, dtype=torch.float32, seed=0):
    blocks = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return coordinates(size, 2, nnz, dtype, True, seed).to_dense().to_sparse(layout=layout, blocksize=blocks)


COMPRESSED_UNARY = {
    "to_dense": lambda s: s.to_dense(),
    "to COO": lambda s: s.to_sparse(),
    "clone": lambda s: s.clone(),
    "detach": lambda s: s.detach(),
    "abs": lambda s: s.abs(),
    "neg": lambda s: -s,
    "sin": lambda s: s.sin(),
    "scaled": lambda s: s * 3,
    "transpose": lambda s: s.transpose(0, 1),
    "values": lambda s: s.values(),
    "sum": lambda s: s.sum(),
    "to int": lambda s: s.to(torch.int32),
    "copy_": lambda s: s.clone().copy_(s * 2),
    "zero_": lambda s: s.clone().zero_(),
    "zeros_like": lambda s: torch.zeros_like(s),
    "in place": lambda s: s.clone().neg_(),
    "select": lambda s: s[1],
    "mul": lambda s: s * s,
    "add": lambda s: s + s * 2,
    "add_": lambda s: s.clone().add_(s),
    "add to dense": lambda s: s.to_dense() + s,
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compressed_functions_of_one_tensor(mps, layout, dtype):
    sparse = compressed(layout, dtype=dtype)
    for name, function in COMPRESSED_UNARY.items():
        try:
            expected = function(sparse)
        except (RuntimeError, NotImplementedError):
            continue  # what the CPU does not have for the layout
        try:
            assert_same(function(sparse.to(mps)), expected)
        except Exception as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("to", [torch.sparse_coo, *LAYOUTS], ids=str)
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, *LAYOUTS], ids=str)
def test_conversions(mps, layout, to):
    coo = coordinates((6, 8), 2, 14, coalesced=True)
    given = {torch.strided: coo.to_dense(), torch.sparse_coo: coo}.get(layout)
    given = compressed(layout) if given is None else given
    blocks = (2, 2) if to in (torch.sparse_bsr, torch.sparse_bsc) else None
    try:
        expected = given.to_sparse(layout=to, blocksize=blocks)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as actual:
            given.to(mps).to_sparse(layout=to, blocksize=blocks)
        assert str(actual.value).split("\n")[0] == str(error).split("\n")[0]
        return
    assert_same(given.to(mps).to_sparse(layout=to, blocksize=blocks), expected)


def test_construction_of_compressed_tensors(mps):
    crow, col, values = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1]), torch.tensor([1.0, 2.0, 3.0])
    for type_of_indices in (torch.int64, torch.int32):
        both(
            lambda c, i, v: torch.sparse_csr_tensor(c, i, v, (2, 4)),
            crow.to(type_of_indices),
            col.to(type_of_indices),
            values,
        )
    both(lambda c, i, v: torch.sparse_csc_tensor(c, i, v, (4, 2)), crow, col, values)
    both(lambda c, i, v: torch.sparse_csr_tensor(c, i, v), crow, col, values)
    both(lambda c, i, v: torch.sparse_bsr_tensor(c, i, v, (4, 8)), crow, col, dense(3, 2, 2))
    on_mps = torch.sparse_csr_tensor(crow, col, values, (2, 4), device=mps)
    assert on_mps.device.type == "mps" and on_mps.crow_indices().device.type == "mps" and "sparse_csr" in repr(on_mps)
    batch = torch.stack([compressed(torch.sparse_csr).to_dense()] * 2)
    both(lambda b: b.to_sparse_csr(), batch)
    both(lambda b: b.to_sparse_csr().to_dense(), batch)
    both(lambda b: b.to_sparse_csr().to_sparse(), batch)


@pytest.mark.parametrize(
    "crow, col",
    [
        ([1, 1, 3], [2, 0, 1]),
        ([0, 1, 2], [2, 0, 1]),
        ([0, 3, 1], [2, 0, 1]),
        ([0, 1, 3], [2, 0, 9]),
        ([0, 1, 3], [2, 1, 0]),
    ],
    ids=["first", "last", "order", "range", "row"],
)
def test_invariants_of_compressed_tensors(mps, crow, col):
    def build(device):
        return torch.sparse_csr_tensor(
            torch.tensor(crow, device=device), torch.tensor(col, device=device), torch.ones(3, device=device), (2, 4),
            check_invariants=True,
        )  # fmt: skip

    with pytest.raises(RuntimeError) as expected:
        build("cpu")
    with pytest.raises(RuntimeError) as actual:
        build(mps)
    assert str(actual.value) == str(expected.value)


def test_invariants_are_checked_no_longer_than_asked_for(mps):
    with torch.sparse.check_sparse_tensor_invariants(), pytest.raises(RuntimeError, match="is not satisfied"):
        torch.sparse_csr_tensor([1, 3], [0, 1, 2], [1.0, 2.0, 3.0], (1, 3), device=mps)
    torch.sparse.check_sparse_tensor_invariants.disable()  # which is another state than never having been asked
    wrong = torch.tensor([1, 3], device=mps)
    tensor = torch.sparse_csr_tensor(wrong, wrong.new_tensor([0, 1, 2]), torch.ones(3, device=mps), (1, 3))
    assert tensor.crow_indices().tolist() == [1, 3]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_products_of_compressed_matrices(mps, layout, dtype):
    sparse, matrix = compressed(layout, dtype=dtype), dense(8, 5, dtype=dtype)
    reference = sparse.to_dense()
    on_mps = sparse.to(mps)
    near = torch.testing.assert_close
    near((on_mps @ matrix.to(mps)).cpu(), reference @ matrix)
    near((dense(3, 6, dtype=dtype).to(mps) @ on_mps).cpu(), dense(3, 6, dtype=dtype) @ reference)
    start = dense(6, 5, dtype=dtype)
    near(
        torch.addmm(start.to(mps), on_mps, matrix.to(mps), beta=2, alpha=3).cpu(),
        torch.addmm(start, reference, matrix, beta=2, alpha=3),
    )
    if layout != torch.sparse_bsc:
        near((on_mps @ matrix[:, 0].to(mps)).cpu(), reference @ matrix[:, 0])
    if layout in (torch.sparse_csr, torch.sparse_csc):
        square = on_mps @ compressed(layout, (8, 6), dtype=dtype, seed=7).to(mps)
        assert square.layout == torch.sparse_csr
        near(square.to_dense().cpu(), reference @ compressed(layout, (8, 6), dtype=dtype, seed=7).to_dense())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("type_of_indices", [torch.int64, torch.int32], ids=str)
def test_sums_of_compressed_matrices(mps, layout, type_of_indices):
    """Indices keep their dtype, and alpha scales the compressed one in either order, both as on the CPU."""
    sparse = compressed(layout)
    rows_first = layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices") if rows_first else ("ccol_indices", "row_indices")
    members = [getattr(sparse, name)().to(type_of_indices) for name in names]
    sparse = torch.sparse_compressed_tensor(*members, sparse.values(), sparse.shape, layout=layout)
    total = torch.add(sparse.to(mps), sparse.to(mps), alpha=3)
    assert total.layout == layout and getattr(total, names[1])().dtype == type_of_indices
    torch.testing.assert_close(total.to_dense().cpu(), 4 * sparse.to_dense())
    if layout == torch.sparse_csr:
        both(lambda s, d: torch.add(s, d, alpha=3), sparse, dense(6, 8))
        both(lambda s, d: torch.add(d, s, alpha=3), sparse, dense(6, 8))


def test_sampled_products(mps):
    sparse, left, right = compressed(torch.sparse_csr), dense(6, 9), dense(9, 8, seed=5)
    both(lambda s, a, b: torch.sparse.sampled_addmm(s, a, b, beta=2, alpha=3), sparse, left, right)
    both(lambda s, a, b: torch.sparse.sampled_addmm(s, a, b, beta=0.0), sparse, left, right)
    both(lambda s, a, b: torch.sparse.sampled_addmm(s, a, b), sparse, left.t().contiguous().t(), right)
    both(lambda s, a, b: gradients(torch.mm, s, b)[1], sparse, left, dense(8, 4))
    assert_same(
        gradients(torch.mm, sparse.to(mps), dense(8, 4).to(mps))[0], gradients(torch.mm, sparse, dense(8, 4))[0]
    )
    for dim in (0, 1, (0, 1)):
        both(lambda s, d=dim: s.sum(d, keepdim=True), sparse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.complex64], ids=str)
@pytest.mark.parametrize("dim", [0, 1, (0, 1)], ids=str)
def test_reductions_of_rows_and_columns(mps, dim, dtype):
    dim = (dim,) if isinstance(dim, int) else dim
    for sparse in (compressed(torch.sparse_csr, dtype=dtype), compressed(torch.sparse_csr, nnz=1, dtype=dtype)):
        for reduce in (torch._sparse_csr_sum, torch._sparse_csr_prod):
            both(lambda s, reduce=reduce: reduce(s, dim, True), sparse)
            both(lambda s, reduce=reduce: reduce(s, dim, True, dtype=torch.complex64), sparse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("terms", [0, 1, 3, 4, 36, 1100])
def test_terms_of_sampled_products(mps, terms, dtype):
    """Few terms and many, which are loaded by four where they are aligned, of matrices in any order of memory."""
    sparse = compressed(torch.sparse_csr, dtype=dtype)
    left, right = dense(6, terms + 1, dtype=dtype), dense(8, terms, dtype=dtype, seed=5)
    for a in (left[:, 1:], left[:, :terms].clone(), left[:, :terms].t().contiguous().t()):
        for b in (right.t(), right.t().contiguous()):
            both(torch.sparse.sampled_addmm, sparse, a, b)
            both(lambda s, x, y: torch.sparse.sampled_addmm(s, x, y, beta=0, alpha=0.5), sparse, a, b)


@pytest.mark.parametrize("type_of_indices", [torch.int64, torch.int32], ids=str)
def test_sampled_products_of_batches(mps, type_of_indices):
    one = compressed(torch.sparse_csr)

    def with_indices(s):
        crow, col = s.crow_indices().to(type_of_indices), s.col_indices().to(type_of_indices)
        return torch.sparse_csr_tensor(crow, col, s.values(), s.shape)

    batch = torch.stack([one.to_dense(), 2 * one.to_dense().flip(1), one.to_dense().flip(0)]).to_sparse_csr()
    left, right = dense(3, 6, 12), dense(3, 12, 8, seed=5)
    for sparse in map(with_indices, (one, batch)):
        both(torch.sparse.sampled_addmm, sparse, left, right)
        both(torch.sparse.sampled_addmm, sparse, left, right.mT.contiguous().mT)
        strided = left[:, :, ::2], right[:, ::2]
        both(lambda s, a, b: torch.sparse.sampled_addmm(s, a, b, beta=2, alpha=3), sparse, *strided)
        both(lambda s, a, b: torch.sparse.sampled_addmm(s, a, b, beta=0.0), sparse, left, right)
    for a, b in [(left[0], right), (left[0], right[0]), (left[:2], right[:2]), (left[0, 0], right[0])]:
        with pytest.raises(RuntimeError) as expected:
            torch.sparse.sampled_addmm(batch, a, b)
        with pytest.raises(RuntimeError) as actual:
            torch.sparse.sampled_addmm(batch.to(mps), a.to(mps), b.to(mps))
        assert str(actual.value) == str(expected.value)


def test_sampled_products_have_indices_of_their_own(mps):
    """copy_ writes the indices of a compressed tensor in place."""
    sparse = compressed(torch.sparse_csr).to(mps)
    before = sparse.to_dense()
    other = sparse.to_dense().flip(1).to_sparse_csr()
    torch.sparse.sampled_addmm(sparse, dense(6, 4).to(mps), dense(4, 8).to(mps)).copy_(other)
    assert torch.equal(sparse.to_dense(), before)


def test_a_graph_convolution_trains(mps):
    """Two layers over a normalized adjacency matrix, in both formats: losses and gradients as on the CPU."""
    edges = coordinates((40, 40), 2, 200, coalesced=True).to_dense().abs().clamp(max=1) + torch.eye(40)
    adjacency = edges / edges.sum(1, keepdim=True)
    features, classes = torch.randn(40, 6), torch.randint(3, (40,))
    first, second = torch.randn(6, 16), torch.randn(16, 3)

    def losses(layout, device):
        matrix = adjacency.to_sparse(layout=layout).to(device)
        weights = [first.clone().to(device).requires_grad_(), second.clone().to(device).requires_grad_()]
        steps, found = torch.optim.Adam(weights, lr=0.05), []
        for _ in range(5):
            steps.zero_grad()
            hidden = torch.relu(matrix @ (features.to(device) @ weights[0]))
            loss = torch.nn.functional.cross_entropy(matrix @ (hidden @ weights[1]), classes.to(device))
            loss.backward()
            steps.step()
            found.append(loss.item())
        return found

    for layout in (torch.sparse_coo, torch.sparse_csr):
        assert losses(layout, mps) == pytest.approx(losses(layout, "cpu"), rel=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_that_reduce_otherwise(mps, reduce, dtype):
    """Two rows of the matrix are empty."""
    sparse = coordinates((9, 8), 2, 12, dtype, coalesced=True).to_sparse_csr()
    matrix = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert (sparse.crow_indices().diff() == 0).any()
    both(lambda s, d: torch.sparse.mm(s, d, reduce), sparse, matrix)
    both(lambda s, d: gradients(lambda a, b: torch.sparse.mm(a, b, reduce), s, d), sparse, matrix)
    both(lambda s, d: torch.sparse.mm(s, d.t().contiguous().t(), reduce), sparse, matrix)


@pytest.mark.parametrize("wrong", [torch.strided, torch.sparse_coo, torch.sparse_csr], ids=str)
def test_results_of_another_layout_are_refused(mps, wrong):
    matrix = torch.eye(3).to(mps)
    csr, coo, vector, batch = matrix.to_sparse_csr(), matrix.to_sparse(), matrix[0], matrix.expand(2, 3, 3)
    out = matrix.to_sparse(layout=wrong) if wrong != torch.strided else matrix.clone()
    calls = {
        torch.strided: [
            lambda: torch.addmm(matrix, csr, matrix, out=out),
            lambda: torch.addmm(matrix, coo, matrix, out=out),
            lambda: torch.add(matrix, coo, out=out),
            lambda: torch.add(matrix, csr, out=out),
            lambda: torch.add(csr, matrix, out=out),
            lambda: torch.mv(csr, vector, out=out),
            lambda: torch.bmm(batch.to_sparse(), batch, out=out),
        ],
        torch.sparse_coo: [
            lambda: torch.add(coo, coo, out=out),
            lambda: torch.hspmm(coo, matrix, out=out),
            lambda: torch.sspaddmm(coo, coo, matrix, out=out),
        ],
        torch.sparse_csr: [
            lambda: torch.add(csr, csr, out=out),
            lambda: torch.addmm(csr, csr, csr, out=out),
            lambda: torch.sparse.sampled_addmm(csr, matrix, matrix, out=out),
        ],
    }
    for layout, functions in calls.items():
        for function in functions if layout != wrong else []:
            with pytest.raises((RuntimeError, NotImplementedError)):
                function()


def test_factors_that_are_no_matrices(mps):
    def refused(device, number):
        sparse, matrix = torch.eye(3).to(device).to_sparse_csr(), torch.ones(3, 3, device=device)
        batch = torch.eye(3).expand(2, 3, 3).to(device)
        if number == 0:
            torch.addmm(matrix, sparse, batch)
        elif number == 1:
            torch.addmm(matrix, batch.to_sparse_csr(), matrix)
        else:
            torch.mm(sparse, batch)

    for number in range(3):
        with pytest.raises(RuntimeError) as expected:
            refused("cpu", number)
        with pytest.raises(RuntimeError) as actual:
            refused(mps, number)
        said = str(expected.value).replace("addmm: ", "").replace("mm: ", "").replace("self", "mat1")  # 2.15's words
        assert str(actual.value) == said


def test_a_compressed_tensor_does_not_take_a_dense_sum(mps):
    csr = torch.eye(3).to(mps).to_sparse_csr()
    with pytest.raises(RuntimeError, match="expected a strided result"):
        csr.add_(torch.ones(3, 3, device=mps))
    assert torch.equal(csr.to_dense().cpu(), torch.eye(3))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr], ids=str)
def test_products_with_conjugate_views(mps, layout):
    """PyTorch hands lazily conjugated and negated factors to products as they are."""
    blocks = (2, 2) if layout == torch.sparse_bsr else None
    matrix = torch.randn(6, 6, dtype=torch.complex64)
    reference = torch.randn(6, 6, dtype=torch.complex64)
    sparse = reference.to_sparse(layout=layout, blocksize=blocks).to(mps)
    for view in (lambda t: t.mH, torch.Tensor.conj, lambda t: t[:, 0].conj(), lambda t: t.conj().imag):
        factor, left = view(matrix), reference
        if not factor.is_complex():
            left = reference.real.contiguous()
            on_mps = left.to_sparse(layout=layout, blocksize=blocks).to(mps)
        else:
            on_mps = sparse
        torch.testing.assert_close((on_mps @ view(matrix.to(mps))).cpu(), left @ factor)
        if factor.dim() == 2:
            start = torch.ones(6, 6, dtype=factor.dtype)
            torch.testing.assert_close(
                torch.addmm(start.to(mps), on_mps, view(matrix.to(mps)), beta=2).cpu(),
                torch.addmm(start, left, factor, beta=2),
            )
    if layout == torch.sparse_csr:
        product = torch.sparse.sampled_addmm(sparse, matrix.to(mps).mH, matrix.to(mps).conj())
        torch.testing.assert_close(product.to_dense().cpu(), reference + matrix.mH @ matrix.conj())
