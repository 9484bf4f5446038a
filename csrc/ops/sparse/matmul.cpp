// Products of matrices in coordinates with dense ones and with each other.
#include <anymps/ops/sparse/matmul_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/zeros.h>

#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"
#include "ops/sparse/spmm.h"

namespace anymps::ops {
namespace {

void check_matrix(const char* name, const Tensor& sparse) {
    TORCH_CHECK(sparse.sparse_dim() == 2, name, "matrices expected, got ", sparse.sparse_dim(), "D tensor");
    TORCH_CHECK(sparse.dense_dim() == 0, name, "scalar values expected, got ", sparse.dense_dim(),
                "D values");
}

// sparse [m, k] times dense [k, n], in any order of the elements: rows are brought together, not columns.
Tensor product_with_dense(const char* op, const Tensor& sparse, const Tensor& dense) {
    Tensor indices = sparse._indices(), values = sparse._values();
    if (!sparse.is_coalesced() && values.numel() > 1) {
        const Tensor order = order_of_keys(indices.select(0, 0), sparse.size(0));
        indices = indices.index_select(1, order);
        values = values.index_select(0, order);
    }
    return spmm(op, row_pointers(indices.select(0, 0), sparse.size(0)), indices.select(0, 1), values, dense);
}

// out = beta * self + alpha * sparse @ dense.
Tensor& addmm_into(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta,
                   const Scalar& alpha, Tensor& out) {
    TORCH_CHECK(out.layout() == at::kStrided,
                "addmm_sparse_dense: expected strided result tensor, got tensor with layout ", out.layout());
    TORCH_CHECK(self.layout() == at::kStrided,
                "addmm_sparse_dense: expected 't' to have strided layout, got tensor with layout ",
                self.layout());
    TORCH_CHECK(sparse.layout() == at::kSparse && dense.layout() == at::kStrided,
                "addmm_sparse_dense: expected either 'mat1' to have sparse layout and 'mat2' to have strided "
                "layout, got 'mat1' with layout ",
                sparse.layout(), " and 'mat2' with layout ", dense.layout());
    check_matrix("addmm: ", sparse);
    TORCH_CHECK(dense.dim() == 2, "addmm: matrices expected, got ", dense.dim(), "D tensor");
    const int64_t m = sparse.size(0), k = sparse.size(1), n = dense.size(1);
    TORCH_CHECK(dense.size(0) == k, "addmm: Argument #3 (dense): Expected dim 0 size ", k, ", got ",
                dense.size(0));
    TORCH_CHECK(self.size(0) == m, "addmm: Argument #1 (t): Expected dim 0 size ", m, ", got ", self.size(0));
    TORCH_CHECK(self.size(1) == n, "addmm: Argument #1 (t): Expected dim 1 size ", n, ", got ", self.size(1));
    check_same_type(sparse, dense);
    check_same_type(sparse, self);
    resize_dense("addmm", out, {m, n});
    return scale_and_add(self, product_with_dense("addmm", sparse, dense), beta, alpha, out);
}

// self [b, m, k] as one block diagonal matrix [b * m, b * k].
Tensor block_diagonal(const Tensor& self) {
    const Tensor indices = self._indices(), matrix = indices.select(0, 0);
    const Tensor rows = at::add(indices.select(0, 1), matrix, self.size(1));
    const Tensor columns = at::add(indices.select(0, 2), matrix, self.size(2));
    return sparse_tensor(at::stack({rows, columns}), self._values(),
                         {self.size(0) * self.size(1), self.size(0) * self.size(2)}, self.is_coalesced());
}

Tensor& bmm_into(const Tensor& self, const Tensor& mat2, Tensor& out) {
    TORCH_CHECK(!mat2.is_sparse(), "bmm_sparse: Tensor 'mat2' must be dense");
    TORCH_CHECK(self.dense_dim() == 0, "bmm_sparse: Tensor 'self' must have 0 dense dims, but has ",
                self.dense_dim());
    TORCH_CHECK(self.sparse_dim() == 3, "bmm_sparse: Tensor 'self' must have 3 sparse dims, but has ",
                self.sparse_dim());
    TORCH_CHECK(mat2.dim() == 3, "bmm_sparse: Tensor 'mat2' must have 3 dims, but has ", mat2.dim());
    TORCH_CHECK(self.size(0) == mat2.size(0), "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match");
    TORCH_CHECK(self.size(2) == mat2.size(1), "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match");
    check_same_type(self, mat2);
    resize_dense("bmm", out, {self.size(0), self.size(1), mat2.size(2)});
    const Tensor dense = mat2.reshape({mat2.size(0) * mat2.size(1), mat2.size(2)});
    return out.copy_(product_with_dense("bmm", block_diagonal(self), dense).view(out.sizes()));
}

// The rows of sparse @ dense that sparse has elements in, [m, n] with one sparse dimension.
Tensor hybrid_product(const Tensor& self, const Tensor& dense) {
    check_matrix("hspmm: Argument #2: ", self);
    TORCH_CHECK(dense.dim() == 2, "hspmm: Argument #3: matrices expected, got ", dense.dim(), "D tensor");
    TORCH_CHECK(dense.size(0) == self.size(1), "hspmm: Argument #3: Expected dim 0 size ", self.size(1),
                ", got ", dense.size(0));
    check_same_type(self, dense);
    const Tensor sparse = self.coalesce(), indices = sparse._indices();
    const auto [rows, number, counts] = at::unique_consecutive(indices.select(0, 0).contiguous(), true);
    const Tensor values =
        spmm("hspmm", row_pointers(number, rows.numel()), indices.select(0, 1), sparse._values(), dense);
    return sparse_tensor(rows.unsqueeze(0), values, {self.size(0), dense.size(1)}, false);
}

// The elements [i, c] * [c, j] of every pair whose place c agrees: a's are met by b's rows.
Tensor product_of(const Tensor& a, const Tensor& b) {
    const Tensor left = a._indices(), right = b._indices();
    const Tensor pointers = row_pointers(right.select(0, 0), b.size(0));
    const auto [which, position] = positions_of_rows(pointers, left.select(0, 1).contiguous());
    const Tensor rows = left.select(0, 0).index_select(0, which);
    const Tensor columns = right.select(0, 1).index_select(0, position);
    const Tensor values = a._values().index_select(0, which).mul(b._values().index_select(0, position));
    const Tensor indices = at::cat({rows, columns}).view({2, -1});
    return sparse_tensor(indices, values, {a.size(0), b.size(1)}, false).coalesce();
}

}  // namespace

Tensor& ANYMPS_SPARSE_FUNC(addmm_out)(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                                      const Scalar& beta, const Scalar& alpha, Tensor& out) {
    const auto base = at::expand_size(self, {mat1.size(0), mat2.size(1)}, "addmm_out");
    return addmm_into(*base, mat1, mat2, beta, alpha, out);
}

Tensor ANYMPS_SPARSE_FUNC(addmm)(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                                 const Scalar& beta, const Scalar& alpha) {
    const auto base = at::expand_size(self, {mat1.size(0), mat2.size(1)}, "addmm_out");
    Tensor out = at::empty({0}, self.options());
    return addmm_into(*base, mat1, mat2, beta, alpha, out);
}

ANYMPS_SPARSE_ROW(addmm_, addmm_into(self, mat1, mat2, beta, alpha, self))

Tensor ANYMPS_SPARSE_FUNC(bmm)(const Tensor& self, const Tensor& mat2) {
    Tensor out = at::empty({0}, mat2.options());
    return bmm_into(self, mat2, out);
}

ANYMPS_SPARSE_ROW(bmm_out, bmm_into(self, mat2, out))
ANYMPS_SPARSE_ROW(hspmm, hybrid_product(mat1, mat2))
ANYMPS_SPARSE_ROW(hspmm_out, become(out, hybrid_product(mat1, mat2)))

// beta * self + alpha * mat1 @ mat2, with the elements of both beside each other.
Tensor& ANYMPS_SPARSE_FUNC(sspaddmm_out)(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                                         const Scalar& beta, const Scalar& alpha, Tensor& out) {
    check_matrix("sspaddmm: Argument #2: ", mat1);
    TORCH_CHECK(mat2.dim() == 2, "sspaddmm: Argument #2: matrices expected, got ", mat2.dim(), "D tensor");
    const int64_t m = mat1.size(0), k = mat1.size(1), n = mat2.size(1);
    // out is resized before the checks: it may be self, of another shape.
    const Tensor base =
        self.is_same(out) ? sparse_tensor(out._indices(), out._values(), out.sizes(), false) : self;
    if (self.is_same(out)) become(out, at::zeros({m, n}, out.options()));
    TORCH_CHECK(mat2.size(0) == k, "sspaddmm: Argument #3: Expected dim 0 size ", k, ", got ", mat2.size(0));
    TORCH_CHECK(self.size(0) == m, "sspaddmm: Argument #1: Expected dim 0 size ", m, ", got ", self.size(0));
    TORCH_CHECK(self.size(1) == n, "sspaddmm: Argument #1: Expected dim 1 size ", n, ", got ", self.size(1));
    check_same_type(mat1, mat2);
    const Tensor rows = hybrid_product(mat1, mat2), row = rows._indices().select(0, 0);
    const Tensor places =
        at::stack({row.repeat_interleave(n), at::arange(n, row.options()).repeat(row.numel())});
    const Tensor values = rows._values().reshape({-1}).mul(alpha);
    if (base._nnz() == 0) return become(out, sparse_tensor(places, values, {m, n}, false));
    const Tensor own = base._values().mul(beta).to(values.scalar_type());
    return become(
        out, sparse_tensor(at::cat({base._indices(), places}, 1), at::cat({own, values}), {m, n}, false));
}

Tensor ANYMPS_SPARSE_FUNC(_sparse_sparse_matmul)(const Tensor& self, const Tensor& other) {
    TORCH_CHECK(self.dim() == 2 && other.dim() == 2, "_sparse_sparse_matmul: matrices expected, got ",
                self.dim(), "D and ", other.dim(), "D tensors");
    TORCH_CHECK(self.dense_dim() == 0, "_sparse_sparse_matmul: scalar values expected, got ",
                self.dense_dim(), "D values");
    TORCH_CHECK(other.dense_dim() == 0, "_sparse_sparse_matmul: scalar values expected, got ",
                other.dense_dim(), "D values");
    TORCH_CHECK(self.size(1) == other.size(0), "mat1 and mat2 shapes cannot be multiplied (", self.size(0),
                "x", self.size(1), " and ", other.size(0), "x", other.size(1), ")");
    TORCH_CHECK(self.scalar_type() == other.scalar_type(), "mat1 dtype ", self.scalar_type(),
                " does not match mat2 dtype ", other.scalar_type());
    return product_of(self, other.coalesce());
}

}  // namespace anymps::ops
