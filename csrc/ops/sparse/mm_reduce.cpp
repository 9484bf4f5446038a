// torch.sparse.mm(csr, dense, reduce): the terms of each element added up, averaged, or the extreme of them.
#include <anymps/ops/sparse/mm_reduce_ops.h>

#include <ATen/native/ReductionType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "kernels/check_dtype.h"
#include "ops/sparse/compressed.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"
#include "ops/sparse/spmm.h"

namespace anymps::ops {
namespace {

using at::native::ReductionType;

void check(const Tensor& self, const Tensor& other) {
    TORCH_CHECK(self.layout() == at::kSparseCsr, "sparse_mm_reduce: expect self to be SparseCsr, got ",
                self.layout());
    TORCH_CHECK(self.dense_dim() == 0, "sparse_mm_reduce: expected non-hybrid self tensor.");
    TORCH_CHECK(self.dim() == 2, "sparse_mm_reduce: expected self to be a 2-D tensor, got ", self.dim(),
                "-D tensor.");
    TORCH_CHECK(other.layout() == at::kStrided, "sparse_mm_reduce: expect other to have strided layout, got ",
                other.layout());
    TORCH_CHECK(other.dim() == 2, "sparse_mm_reduce: expected other to be a 2-D tensor, got ", other.dim(),
                "-D tensor.");
    TORCH_CHECK(self.size(1) == other.size(0),
                "sparse_mm_reduce: mat1 and mat2 shapes cannot be multiplied (", self.size(0), "x",
                self.size(1), " and ", other.size(0), "x", other.size(1), ")");
    TORCH_CHECK(self.scalar_type() == other.scalar_type(),
                "sparse_mm_reduce: expect self and other to have the same dtype, got ", self.scalar_type(),
                " and ", other.scalar_type());
    kernels::check_floating(self.scalar_type(), "spmm_reduce_kernel");
}

Reduce reduce_of(ReductionType type) {
    TORCH_CHECK(type != ReductionType::PROD, "sparse_mm_reduce: reduce type of prod has not been enabled.");
    switch (type) {
        case ReductionType::MEAN:
            return Reduce::kMean;
        case ReductionType::MAX:
            return Reduce::kAmax;
        case ReductionType::MIN:
            return Reduce::kAmin;
        default:
            return Reduce::kSum;
    }
}

// Each gradient goes to the term that was the extreme: {of values [nnz], of other [k, n]}.
std::pair<Tensor, Tensor> backward_of_extremes(const Tensor& self, const Tensor& grad, const Tensor& other,
                                               const Tensor& arg) {
    const int64_t nnz = self._nnz(), width = other.size(1);
    const Tensor present = arg.ne(nnz), position = arg.to(at::kLong).clamp_max(nnz - 1).reshape({-1});
    const Tensor given = grad.masked_fill(present.logical_not(), 0).reshape({-1});
    const Tensor row = self.col_indices().to(at::kLong).index_select(0, position);
    const Tensor column = at::arange(width, row.options()).repeat(grad.size(0));
    const Tensor place = row.mul(width).add_(column);
    const Tensor factor = other.reshape({-1}).index_select(0, place);
    const Tensor of_values = add_by_index(given.mul(factor), position, nnz);
    const Tensor to_other = given.mul(self.values().index_select(0, position));
    return {of_values, add_by_index(to_other, place, other.numel()).view(other.sizes())};
}

}  // namespace

std::tuple<Tensor, Tensor> ANYMPS_SPARSE_CSR_FUNC(_sparse_mm_reduce_impl)(const Tensor& self,
                                                                          const Tensor& other,
                                                                          c10::string_view reduce) {
    check(self, other);
    const Reduce how = reduce_of(at::native::get_reduction_enum(reduce));
    Tensor arg = at::empty({0}, self.col_indices().options());
    if (self._nnz() == 0) return {at::zeros({self.size(0), other.size(1)}, other.options()), arg};
    const bool needs_arg = c10::GradMode::is_enabled() && (self.requires_grad() || other.requires_grad()) &&
                           (how == Reduce::kAmax || how == Reduce::kAmin);
    if (needs_arg) arg.resize_({self.size(0), other.size(1)});
    const Tensor out = spmm_reduce("sparse_mm_reduce", how, self.crow_indices(), self.col_indices(),
                                   self.values(), other, needs_arg ? arg : Tensor());
    return {out, arg};
}

std::tuple<Tensor, Tensor> ANYMPS_SPARSE_CSR_FUNC(_sparse_mm_reduce_impl_backward)(
    const Tensor& self, const Tensor& grad_out, const Tensor& weight, c10::string_view reduce,
    const Tensor& arg_out, std::array<bool, 2> output_mask) {
    check(self, weight);
    const Reduce how = reduce_of(at::native::get_reduction_enum(reduce));
    if (self._nnz() == 0) {
        return {output_mask[0] ? with_values(self, at::zeros_like(self.values())) : Tensor(),
                output_mask[1] ? at::zeros_like(weight) : Tensor()};
    }
    if (how == Reduce::kAmax || how == Reduce::kAmin) {
        const auto [of_values, of_other] = backward_of_extremes(self, grad_out, weight, arg_out);
        return {output_mask[0] ? with_values(self, of_values) : Tensor(),
                output_mask[1] ? of_other : Tensor()};
    }
    Tensor grad = grad_out;
    if (how == Reduce::kMean) {
        const Tensor crow = self.crow_indices(), counts = crow.slice(0, 1).sub(crow.slice(0, 0, -1));
        grad = grad.div(counts.clamp_min(1).unsqueeze(1));
    }
    Tensor of_self, of_other;
    if (output_mask[0]) {
        of_self = with_values(
            self, sddmm("sparse_mm_reduce", self.crow_indices(), self.col_indices(), grad, weight.t()));
    }
    if (output_mask[1]) {
        const Tensor columns = self.to_sparse_csc();
        of_other =
            spmm("sparse_mm_reduce", columns.ccol_indices(), columns.row_indices(), columns.values(), grad);
    }
    return {of_self, of_other};
}

}  // namespace anymps::ops
