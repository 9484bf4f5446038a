// sort, topk, kthvalue, median: what is taken from the sorted order of rows.
#include <anymps/ops/sort/sort_ops.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SortingUtils.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include <limits>
#include <tuple>
#include <utility>

#include "ops/sort/radix_select.h"
#include "ops/sort/radix_sort.h"
#include "ops/sort/sort_order.h"

namespace anymps::ops {
namespace {

// Rows of `dim`, dense.
Tensor rows_of(const Tensor& self, int64_t dim) {
    return self.dim() == 0 ? self.view({1, 1})
                           : self.movedim(dim, -1).contiguous().view({-1, self.size(dim)});
}

// Places [first, first + kept) of each sorted row of self along dim, into values and indices of the right
// sizes.
void take(const Tensor& self, int64_t dim, bool descending, int64_t first, int64_t kept, const Tensor& values,
          const Tensor& indices) {
    const Tensor rows = rows_of(self, dim);
    const bool last = self.dim() == 0 || dim == self.dim() - 1;
    const bool direct =
        last && values.is_contiguous() && indices.is_contiguous() && !values.is_alias_of(rows);
    auto sizes = self.sizes().vec();
    if (self.dim() > 0) {
        sizes.erase(sizes.begin() + dim);
        sizes.push_back(kept);
    }
    const Tensor v = direct ? values : at::empty(sizes, values.options());
    const Tensor i = direct ? indices : at::empty(sizes, indices.options());
    sort_rows(rows, descending, first, v.view({rows.size(0), kept}), i.view({rows.size(0), kept}));
    if (direct) return;
    values.copy_(self.dim() == 0 ? v : v.movedim(-1, dim));
    indices.copy_(self.dim() == 0 ? i : i.movedim(-1, dim));
}

// For each row the place of its median in ascending order, [..., 1]: of all elements, or the first NaN;
// without the NaNs where they are ignored.
Tensor median_position(const Tensor& rows, bool ignore_nan) {
    const int64_t n = rows.size(-1);
    auto sizes = rows.sizes().vec();
    sizes.back() = 1;
    const Tensor middle = at::full(sizes, (n - 1) / 2, rows.options().dtype(at::kLong));
    if (!rows.is_floating_point()) return middle;
    const Tensor numbers = at::isnan(rows).logical_not().sum(-1, true);
    if (ignore_nan) return at::div(numbers.sub(1), 2, "floor").clamp_min(0);
    return at::where(numbers.lt(n), numbers, middle);
}

// The medians of dense rows [n, length], and their positions: both [n].
std::pair<Tensor, Tensor> medians(const Tensor& rows, bool ignore_nan) {
    const Tensor position = median_position(rows, ignore_nan);
    if (sorts_by_radix(rows) && rows.size(1) > radix_tile()) {
        const Tensor values = at::empty({rows.size(0)}, rows.options()),
                     indices = at::empty_like(position.squeeze(1));
        select_positions(rows, position.squeeze(1), values, indices);
        return {values, indices};
    }
    const auto [sorted, order] = at::sort(rows, true, -1, false);
    return {sorted.gather(-1, position).squeeze(1), order.gather(-1, position).squeeze(1)};
}

using Outputs = std::tuple<Tensor&, Tensor&>;

Outputs median_along(const Tensor& self, int64_t dim, bool keepdim, bool ignore_nan, Tensor& values,
                     Tensor& indices) {
    at::assert_no_overlap(values, indices);
    dim = at::maybe_wrap_dim(dim, self.dim(), true);
    at::native::zero_numel_check_dims(self, dim, "median()");
    at::assert_no_overlap(values, self);
    at::native::_reduction_with_indices_allocate_or_resize_output(values, indices, self, dim, keepdim);
    if (self.numel() > 0) {
        const auto [v, i] = medians(rows_of(self, dim), ignore_nan);
        values.copy_(v.view(values.sizes()));
        indices.copy_(i.view(indices.sizes()));
    }
    if (!keepdim && self.dim() > 0) {
        values.squeeze_(dim);
        indices.squeeze_(dim);
    }
    return {values, indices};
}

Tensor median_of_all(const Tensor& self, bool ignore_nan) {
    if (self.numel() == 0) {
        // NaN, as integers hold it on the CPU.
        const auto options = self.options().dtype(at::kFloat);
        return at::full({}, std::numeric_limits<float>::quiet_NaN(), options).to(self.scalar_type());
    }
    return medians(self.reshape({1, -1}).contiguous(), ignore_nan).first.squeeze();
}

}  // namespace

TORCH_IMPL_FUNC(sort_values_stable)
(const Tensor& self, std::optional<bool> stable, int64_t dim, bool descending, const Tensor& values,
 const Tensor& indices) {
    dim = at::maybe_wrap_dim(dim, self.dim(), true);
    if (self.numel() == 0) return;
    take(self, dim, descending, 0, self.dim() == 0 ? 1 : self.size(dim), values, indices);
}

TORCH_IMPL_FUNC(topk_values)
(const Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted, const Tensor& values,
 const Tensor& indices) {
    dim = at::maybe_wrap_dim(dim, self.dim(), true);
    if (values.numel() == 0) return;  // a number has itself for any k
    take(self, dim, largest, 0, self.dim() == 0 ? 1 : k, values, indices);
}

Outputs ANYMPS_FUNC(kthvalue_values)(const Tensor& self, int64_t k, int64_t dim_, bool keepdim,
                                     Tensor& values, Tensor& indices) {
    const int64_t dim = at::maybe_wrap_dim(dim_, self.dim(), true);
    const int64_t size = self.dim() > 0 ? self.size(dim) : 1;
    at::native::zero_numel_check_dims(self, dim, "kthvalue()");
    TORCH_CHECK(k > 0 && k <= size, "kthvalue(): selected number k out of range for dimension ", dim);
    at::assert_no_overlap(self, values);
    at::native::_reduction_with_indices_allocate_or_resize_output(values, indices, self, dim, keepdim);
    if (self.numel() > 0) take(self, dim, false, k - 1, 1, values, indices);
    if (!keepdim && self.dim() > 0) {
        values.squeeze_(dim);
        indices.squeeze_(dim);
    }
    return {values, indices};
}

ANYMPS_ROW(median_dim_values, median_along(self, dim, keepdim, false, values, indices))
ANYMPS_ROW(nanmedian_dim_values, median_along(self, dim, keepdim, true, values, indices))
ANYMPS_ROW(median, median_of_all(self, false))
ANYMPS_ROW(nanmedian, median_of_all(self, true))

}  // namespace anymps::ops
