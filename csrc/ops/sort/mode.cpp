// The most frequent value of each row: the longest run of the sorted row, the first of several.
#include <anymps/ops/sort/mode_ops.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/SortingUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "kernels/check_dtype.h"

namespace anymps::ops {
namespace {

// For rows [..., n] the place in the sorted row of the last element of its first longest run, [..., 1].
Tensor end_of_longest_run(const Tensor& sorted) {
    const int64_t n = sorted.size(-1);
    const Tensor position = at::arange(n, sorted.options().dtype(at::kLong));
    const Tensor changed = sorted.narrow(-1, 1, n - 1).ne(sorted.narrow(-1, 0, n - 1));
    const Tensor starts = at::constant_pad_nd(changed, {1, 0}).mul(position);
    return position.sub(std::get<0>(starts.cummax(-1))).argmax(-1, true);
}

}  // namespace

// The index is that of the value's last element.
std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(mode_values)(const Tensor& self, int64_t dim, bool keepdim,
                                                      Tensor& values, Tensor& indices) {
    TORCH_CHECK(self.device() == values.device(), "expected device '", self.device(), "' but got '",
                values.device(), "' for values output");
    TORCH_CHECK(self.device() == indices.device(), "expected device '", self.device(), "' but got '",
                indices.device(), "' for indices output");
    TORCH_CHECK(self.scalar_type() == values.scalar_type(), "expected scalar type '", self.scalar_type(),
                "' but got '", values.scalar_type(), "' for values output");
    TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type '", at::kLong, "' but got '",
                indices.scalar_type(), "' for indices output");
    dim = at::maybe_wrap_dim(dim, self.dim());
    at::native::zero_numel_check_dims(self, dim, "mode()");
    kernels::check_real(self.scalar_type(), "mode_cpu");
    at::assert_no_overlap(values, indices);
    at::assert_no_overlap(values, self);
    at::native::_reduction_with_indices_allocate_or_resize_output(values, indices, self, dim, keepdim);
    if (self.numel() > 0) {
        const Tensor rows = self.dim() == 0 ? self.view(1) : self.movedim(dim, -1);
        const auto [sorted, order] = at::sort(rows, true, -1, false);
        const Tensor position = end_of_longest_run(sorted);
        const auto back = [&](const Tensor& t) { return self.dim() == 0 ? t.squeeze() : t.movedim(-1, dim); };
        values.copy_(back(sorted.gather(-1, position)));
        indices.copy_(back(order.gather(-1, position)));
    }
    if (!keepdim && self.dim() > 0) {
        values.squeeze_(dim);
        indices.squeeze_(dim);
    }
    return {values, indices};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(mode)(const Tensor& self, int64_t dim, bool keepdim) {
    Tensor values = at::empty({0}, self.options());
    Tensor indices = at::empty({0}, self.options().dtype(at::kLong));
    return mode_values(self, dim, keepdim, values, indices);
}

}  // namespace anymps::ops
