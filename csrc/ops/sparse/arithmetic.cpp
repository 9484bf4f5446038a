// Sums and products of tensors in coordinates, with each other and with dense ones.
#include <anymps/ops/sparse/arithmetic_ops.h>

#include <ATen/ops/_sparse_mask_projection_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sparse_mask_native.h>
#include <c10/util/accumulate.h>

#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"

namespace anymps::ops {
namespace {

ScalarType checked_type(const Tensor& self, const Tensor& other, const Tensor& out, const char* op) {
    const ScalarType common = c10::promoteTypes(self.scalar_type(), other.scalar_type());
    TORCH_CHECK(c10::canCast(common, out.scalar_type()), "Can't convert result type ", common, " to output ",
                out.scalar_type(), " in ", op, " operation");
    return common;
}

Tensor scaled(const Tensor& values, const Scalar& factor) {
    if (factor.toComplexDouble() == 1.0) return values;
    return values.mul(values.scalar_type() == at::kBool ? Scalar(factor.to<bool>()) : factor);
}

Tensor& add_to_dense(const Tensor& dense, const Tensor& sparse, const Scalar& alpha, Tensor& out) {
    TORCH_CHECK(dense.sizes().equals(sparse.sizes()),
                "add: expected 'self' and 'other' to have same size, but self has size ", dense.sizes(),
                " while other has size ", sparse.sizes(),
                " (FYI: dense-sparse addition does not currently support broadcasting)");
    const ScalarType common = checked_type(dense, sparse, out, "add");
    const int64_t sparse_dim = sparse.sparse_dim();
    resize_dense("add", out, dense.sizes());
    const bool direct = out.scalar_type() == common && out.is_contiguous();
    Tensor sum = direct ? out : dense.to(common, false, /*copy=*/true, at::MemoryFormat::Contiguous);
    if (direct && !out.is_same(dense)) sum.copy_(dense);
    if (sparse._nnz() > 0 && sum.numel() > 0) {
        auto rows = sparse._values().sizes().vec();
        rows[0] = c10::multiply_integers(dense.sizes().slice(0, sparse_dim));
        const Tensor keys = flat_keys(sparse._indices(), sparse.sizes());
        sum.view(rows).index_add_(0, keys, scaled(sparse._values().to(common), alpha));
    }
    return direct ? out : out.copy_(sum);
}

// Elements of both beside each other, as CUDA adds: nothing waits for the number of distinct places.
// Coalesced where more elements than places would pile up, or where sums are converted to the dtype of a
// result.
Tensor sum_of(const Tensor& self, const Tensor& other, const Scalar& alpha, ScalarType common,
              ScalarType result) {
    const Tensor indices = at::cat({self._indices(), other._indices()}, 1);
    const Tensor values = at::cat({self._values().to(common), scaled(other._values().to(common), alpha)});
    const Tensor sum = sparse_tensor(indices, values, self.sizes(), false);
    return result != common || sum._nnz() > sum.numel() ? sum.coalesce() : sum;
}

// Elements of `self` times the element of `other` at their place; other is coalesced.
Tensor product_of(const Tensor& self, const Tensor& other, ScalarType common) {
    const auto [found, position] =
        find_keys(flat_keys(other._indices(), other.sizes()), flat_keys(self._indices(), self.sizes()));
    const auto aligned = [](const Tensor& values, int64_t dims) {  // dense sizes broadcast
        auto sizes = values.sizes().vec();
        sizes.insert(sizes.begin() + 1, dims - values.dim(), 1);
        return values.view(sizes);
    };
    const Tensor left = self._values().to(common), right = other._values().to(common);
    const int64_t dims = std::max(left.dim(), right.dim());
    Tensor indices = self._indices(), values;
    if (self.is_coalesced()) {
        const Tensor kept = at::nonzero(found).squeeze(1);
        indices = indices.index_select(1, kept);
        values = aligned(left.index_select(0, kept), dims)
                     .mul(aligned(right.index_select(0, position.index_select(0, kept)), dims));
    } else {  // as on the CPU: nothing is left out
        values = aligned(left, dims).mul(aligned(right.index_select(0, position), dims));
        values.masked_fill_(per_element(found.logical_not(), dims), 0);
    }
    auto sizes = self.sizes().slice(0, self.sparse_dim()).vec();
    sizes.insert(sizes.end(), values.sizes().begin() + 1, values.sizes().end());
    return sparse_tensor(indices, values, sizes, self.is_coalesced());
}

}  // namespace

Tensor& ANYMPS_SPARSE_FUNC(add_out)(const Tensor& self, const Tensor& other, const Scalar& alpha,
                                    Tensor& out) {
    if (!self.is_sparse()) return add_to_dense(self, other, alpha, out);
    TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
    TORCH_CHECK(self.sizes().equals(other.sizes()),
                "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
                " != ", other.sizes());
    const ScalarType common = checked_type(self, other, out, "add");
    if (other._nnz() == 0) return out.is_same(self) ? out : become(out, self.clone());
    if (self._nnz() == 0) {
        return become(out, sparse_tensor(other._indices().clone(), scaled(other._values(), alpha).clone(),
                                         other.sizes(), other.is_coalesced()));
    }
    TORCH_CHECK(self.sparse_dim() == other.sparse_dim() && self.dense_dim() == other.dense_dim(),
                "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
                " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
    return become(out, sum_of(self, other, alpha, common, out.scalar_type()));
}

Tensor& ANYMPS_SPARSE_FUNC(mul_out)(const Tensor& self, const Tensor& other, Tensor& out) {
    const bool both = self.is_sparse() && other.is_sparse();
    // ATen's function asks its kernels for the CPU only where two sparse tensors meet.
    if (!both || self.dim() == 0 || other.dim() == 0) return at::native::mul_out_sparse_cpu(self, other, out);
    if (self.sizes().equals(other.sizes()) && (self._nnz() == 0 || other._nnz() == 0))
        return at::native::mul_out_sparse_cpu(self, other, out);
    TORCH_CHECK(self.sparse_dim() == other.sparse_dim() &&
                    self.sizes().slice(0, self.sparse_dim()) == other.sizes().slice(0, self.sparse_dim()),
                "mul: expected 'self' and 'other' to have same sizes when both are sparse, but ",
                self.sizes(), " != ", other.sizes());
    const ScalarType common = checked_type(self, other, out, "mul");
    // What is searched must be coalesced; an empty tensor cannot be searched.
    const bool search_other = self._nnz() == 0 || (other.is_coalesced() && !self.is_coalesced());
    const Tensor &elements = search_other ? self : other, &among = search_other ? other : self;
    return become(out, product_of(elements, among.coalesce(), common));
}

// The elements of self at the places of mask's.
Tensor ANYMPS_SPARSE_FUNC(sparse_mask)(const Tensor& self, const Tensor& mask) {
    if (!self.is_sparse() || self.is_same(mask) || !self.sizes().equals(mask.sizes()) || mask._nnz() == 0 ||
        mask.numel() == 0 || self._nnz() == 0) {
        return at::native::sparse_mask(self, mask);
    }
    TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(),
                "sparse_mask(): the number of sparse dimensions in `self` should match that of the `mask`. "
                "Got `self.sparse_dim() == ",
                self.sparse_dim(), "` != `mask.sparse_dim() == ", mask.sparse_dim(), "`.");
    const Tensor from = self.coalesce();
    const Tensor taken = values_of_keys(from._values(), flat_keys(from._indices(), from.sizes()),
                                        flat_keys(mask._indices(), mask.sizes()));
    return sparse_tensor(mask._indices().clone(), taken, self.sizes(), mask.is_coalesced());
}

// self where mask has elements too, zero elsewhere; accumulate_matches: times their number.
Tensor ANYMPS_SPARSE_FUNC(_sparse_mask_projection)(const Tensor& self, const Tensor& mask,
                                                   bool accumulate_matches) {
    if (!self.sizes().equals(mask.sizes()) || self.numel() == 0 || self._nnz() == 0 || mask._nnz() == 0)
        return at::native::sparse_mask_projection(self, mask, accumulate_matches);
    const Tensor among = std::get<0>(flat_keys(mask._indices(), mask.sizes()).sort());
    const Tensor keys = flat_keys(self._indices(), self.sizes()), values = self._values();
    Tensor times = at::searchsorted(among, keys, false, /*right=*/true).sub_(at::searchsorted(among, keys));
    if (!accumulate_matches) times.clamp_max_(1);
    const Tensor projected = values.mul(per_element(times, values.dim())).to(values.scalar_type());
    return sparse_tensor(self._indices().clone(), projected, self.sizes(), self.is_coalesced());
}

}  // namespace anymps::ops
