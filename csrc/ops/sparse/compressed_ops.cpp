// Arithmetic of compressed tensors: by their rows where a dense matrix is multiplied, else by coordinates.
#include <anymps/ops/sparse/compressed_ops_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/check_dtype.h"
#include "ops/sparse/compressed.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"
#include "ops/sparse/spmm.h"

namespace anymps::ops {
namespace {

using at::sparse_csr::getCompressedPlainIndices;

// A tensor in coordinates in the layout and the block size of another one.
Tensor in_layout_of(const Tensor& coordinates, const Tensor& like) {
    const bool blocks = like.layout() == at::kSparseBsr || like.layout() == at::kSparseBsc;
    const Tensor found = blocks ? coordinates.to_sparse(like.layout(), at::sparse_csr::getBlockSize(like))
                                : coordinates.to_sparse(like.layout());
    const auto type = std::get<0>(getCompressedPlainIndices(like)).scalar_type();
    const auto [compressed_indices, plain_indices] = getCompressedPlainIndices(found);
    if (plain_indices.scalar_type() == type) return found;
    return compressed_tensor(like.layout(), compressed_indices.to(type), plain_indices.to(type),
                             found.values(), c10::fromIntArrayRefSlow(found.sizes()));
}

// sparse [m, k] times dense [k, n], dense.
Tensor sparse_times_dense(const char* op, const Tensor& sparse, const Tensor& dense) {
    if (sparse.layout() == at::kSparse) return at::mm(sparse, dense);
    const Tensor rows = sparse.layout() == at::kSparseCsr ? sparse : sparse.to_sparse().to_sparse_csr();
    return spmm(op, rows.crow_indices(), rows.col_indices(), rows.values(), dense);
}

// The transposed matrix: a CSC one's columns are its rows.
Tensor transposed(const Tensor& sparse) {
    if (sparse.layout() != at::kSparseCsc) return sparse.to_sparse().t();
    return compressed_tensor(at::kSparseCsr, sparse.ccol_indices(), sparse.row_indices(), sparse.values(),
                             c10::SymIntArrayRef({sparse.size(1), sparse.size(0)}));
}

Tensor coordinates_of(const Tensor& sparse) {
    return sparse.layout() == at::kSparse ? sparse : sparse.to_sparse();
}

// Dense where one of them is, else in coordinates.
Tensor product(const char* op, const Tensor& mat1, const Tensor& mat2) {
    if (mat2.layout() == at::kStrided) return sparse_times_dense(op, mat1, mat2);
    if (mat1.layout() == at::kStrided) return sparse_times_dense(op, transposed(mat2), mat1.t()).t();
    return at::mm(coordinates_of(mat1), coordinates_of(mat2));
}

// The elements in coordinates, those of `dim` being 0 now, and its sizes 1: what is to be reduced has one
// place. Integers become int64 where no dtype is asked for. op: the name in ATen's error.
Tensor without_dims(const char* op, const Tensor& self, at::IntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
    TORCH_CHECK(keepdim, "reduction operations on CSR tensors with keepdim=False is unsupported");
    const auto reduced = at::dim_list_to_bitset(dim, 2);
    const bool all = dim.empty() || (reduced[0] && reduced[1]);
    const auto own = self.scalar_type();
    const auto type = dtype.value_or(at::isIntegralType(own, /*includeBool=*/false) ? at::kLong : own);
    kernels::check_implemented(type != at::kBool, type, op);
    const Tensor values = self.values().to(type);
    const Tensor places = at::_convert_indices_from_csr_to_coo(self.crow_indices(), self.col_indices());
    std::vector<int64_t> sizes = self.sizes().vec();
    for (int64_t d = 0; d < 2; ++d) {
        if (!all && !reduced[d]) continue;
        places.select(0, d).zero_();
        sizes[d] = 1;
    }
    return sparse_tensor(places, values, sizes, false);
}

}  // namespace

Tensor ANYMPS_SPARSE_FUNC(_to_sparse_csr)(const Tensor& self, std::optional<int64_t> /*dense_dim*/) {
    TORCH_CHECK(self.sparse_dim() == 2,
                "coo_to_sparse_csr: conversion from Sparse to SparseCsr for input tensors with "
                "sparse_dim()!=2 is not supported");
    const Tensor sorted = self.coalesce(), indices = sorted.indices();
    return compressed_tensor(
        at::kSparseCsr, at::_convert_indices_from_coo_to_csr(indices.select(0, 0), self.size(0)),
        indices.select(0, 1).contiguous(), sorted.values(), c10::fromIntArrayRefSlow(self.sizes()));
}

Tensor ANYMPS_SPARSE_FUNC(_to_sparse_csc)(const Tensor& self, std::optional<int64_t> dense_dim) {
    TORCH_CHECK(self.sparse_dim() == 2,
                "coo_to_sparse_csc: conversion from Sparse to SparseCsc for input tensors with "
                "sparse_dim()!=2 is not supported");
    const Tensor rows = self.transpose(0, 1).to_sparse_csr(dense_dim);
    return compressed_tensor(at::kSparseCsc, rows.crow_indices(), rows.col_indices(), rows.values(),
                             c10::fromIntArrayRefSlow(self.sizes()));
}

// Indices are copied, values are not initialized.
Tensor ANYMPS_SPARSE_CSR_FUNC(empty_like)(const Tensor& self, std::optional<at::ScalarType> dtype,
                                          std::optional<at::Layout> layout, std::optional<at::Device> device,
                                          std::optional<bool> /*pin_memory*/,
                                          std::optional<at::MemoryFormat> /*memory_format*/) {
    const auto to = device.value_or(self.device());
    const auto type = dtype.value_or(self.scalar_type());
    if (layout.value_or(self.layout()) == at::kStrided)
        return at::empty(self.sizes(), at::TensorOptions().dtype(type).device(to));
    TORCH_CHECK(layout.value_or(self.layout()) == self.layout(),
                "empty_like with different sparse layout is not supported (self is ", self.layout(),
                " but you requested ", *layout, ")");
    const auto [compressed_indices, plain_indices] = getCompressedPlainIndices(self);
    const auto copied = [&](const Tensor& indices) {
        return indices.to(to, indices.scalar_type(), false, true);
    };
    const Tensor values = at::empty(self.values().sizes(), at::TensorOptions().dtype(type).device(to));
    return at::_sparse_compressed_tensor_unsafe(copied(compressed_indices), copied(plain_indices), values,
                                                self.sizes(), values.options().layout(self.layout()));
}

ANYMPS_SPARSE_CSR_ROW(mul_Scalar, with_values(self, self.values().mul(other)))

Tensor& ANYMPS_SPARSE_CSR_FUNC(add_out)(const Tensor& self, const Tensor& other, const Scalar& alpha,
                                        Tensor& out) {
    // A compressed result would bring the call here again.
    const bool dense = self.layout() == at::kStrided || other.layout() == at::kStrided;
    TORCH_CHECK(!dense || out.layout() == at::kStrided,
                "add: expected a strided result, but got one of layout ", out.layout());
    if (self.layout() == at::kStrided) {
        return at::add_out(out, self, coordinates_of(other), alpha);
    }
    if (other.layout() == at::kStrided) {
        // On the CPU and CUDA too alpha scales the compressed one in either order.
        return at::add_out(out, other, coordinates_of(self), alpha);
    }
    TORCH_CHECK(self.sizes().equals(other.sizes()),
                "torch.add: Expected input tensors to have the same shape, but got tensor `self` with shape ",
                self.sizes(), " and tensor `other` with shape ", other.sizes());
    const Tensor sum = at::add(coordinates_of(self), coordinates_of(other), alpha);
    return become(out, in_layout_of(sum, self));
}

Tensor& ANYMPS_SPARSE_CSR_FUNC(addmm_out)(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                                          const Scalar& beta, const Scalar& alpha, Tensor& out) {
    TORCH_CHECK(mat1.dim() == 2, "mat1 must be a matrix, got ", mat1.dim(), "-D tensor");
    TORCH_CHECK(mat2.dim() == 2, "mat2 must be a matrix, got ", mat2.dim(), "-D tensor");
    TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (", mat1.size(0),
                "x", mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
    check_same_type(mat1, mat2);
    check_same_type(mat1, self);
    const int64_t m = mat1.size(0), n = mat2.size(1);
    const Tensor found = product("addmm", mat1, mat2);
    if (self.layout() == at::kStrided) {
        const auto base = at::expand_size(self, {m, n}, "addmm");
        if (!out.is_same(self)) resize_dense("addmm", out, {m, n});
        return scale_and_add(*base, found.layout() == at::kStrided ? found : found.to_dense(), beta, alpha,
                             out);
    }
    TORCH_CHECK(self.dim() == 2 && self.size(0) == m && self.size(1) == n,
                "The input tensor must be a matrix with size ", m, "x", n, ", but got a ", self.dim(),
                "-D tensor with size ", self.size(0), "x", self.size(1));
    const Tensor sum = coordinates_of(found.layout() == at::kStrided ? found.to_sparse() : found).mul(alpha);
    const bool alone = beta.toComplexDouble() == 0.0;
    const Tensor result = alone ? sum : at::add(sum, coordinates_of(self).mul(beta));
    return become(out, in_layout_of(result, self));
}

Tensor& ANYMPS_SPARSE_CSR_FUNC(addmv_out)(const Tensor& self, const Tensor& mat, const Tensor& vec,
                                          const Scalar& beta, const Scalar& alpha, Tensor& out) {
    TORCH_CHECK(mat.layout() != at::kSparseBsc,
                "torch.addmv: operation not supported for mat with SparseBsc layout");
    TORCH_CHECK(mat.dim() == 2, "addmv: Expected mat to be 2-D");
    TORCH_CHECK(vec.dim() == 1, "addmv: Expected vec to be 1-D");
    TORCH_CHECK(mat.size(1) == vec.size(0), "size mismatch, got input (", mat.size(0), "), mat (",
                mat.size(0), "x", mat.size(1), "), vec (", vec.size(0), ")");
    check_same_type(mat, vec);
    const auto base = at::expand_size(self, {mat.size(0)}, "addmv");
    if (!out.is_same(self)) resize_dense("addmv", out, {mat.size(0)});
    const Tensor found = sparse_times_dense("addmv", mat, vec.unsqueeze(1)).squeeze(1);
    return scale_and_add(*base, found, beta, alpha, out);
}

ANYMPS_SPARSE_CSR_ROW(_sparse_csr_sum_dim_dtype,
                      without_dims("_sparse_csr_sum_cpu", self, dim, keepdim, dtype).to_sparse_csr())

// Elements alone are multiplied, not the zeros between them.
Tensor ANYMPS_SPARSE_CSR_FUNC(_sparse_csr_prod_dim_dtype)(const Tensor& self, at::IntArrayRef dim,
                                                          bool keepdim, std::optional<at::ScalarType> dtype) {
    const Tensor factors = without_dims("_sparse_csr_prod_cpu", self, dim, keepdim, dtype),
                 values = factors._values();
    const auto [keys, index] = at::_unique(flat_keys(factors._indices(), factors.sizes()), true, true);
    const Tensor products =
        at::ones(keys.sizes(), values.options()).scatter_reduce(0, index.contiguous(), values, "prod");
    // One of the sizes is 1, at least: a key is the other one's coordinate.
    const Tensor zeros = at::zeros_like(keys);
    const bool rows = factors.size(1) == 1;
    const Tensor places = at::stack({rows ? keys : zeros, rows ? zeros : keys});
    return sparse_tensor(places, products, factors.sizes(), true).to_sparse_csr();
}

}  // namespace anymps::ops
