// sort, topk, kthvalue, median: one stable merge sort of rows.
#include <anymps/ops/sort_ops.h>

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

#include "kernels/flat_grid.h"
#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

constexpr uint32_t kRun = 8;  // as in shaders/sort.slang

struct SortArgs {
    uint64_t input, from, to, from_index, to_index, rows;
    uint32_t length, width;
};

struct TakeArgs {
    uint64_t input, order, values, indices, rows;
    uint32_t length, first, kept, pad;
};

// Rows of `dim`, dense.
Tensor rows_of(const Tensor& self, int64_t dim) {
    return self.dim() == 0 ? self.view({1, 1})
                           : self.movedim(dim, -1).contiguous().view({-1, self.size(dim)});
}

// For each row the positions in sorted order, uint32 in an int32 tensor.
Tensor sorted_order(const Tensor& rows, bool descending) {
    TORCH_CHECK(!rows.is_complex(), "Sort does not support complex dtypes on MPS");
    TORCH_CHECK(rows.size(1) <= UINT32_MAX / 2, "sort: rows of ", rows.size(1),
                " elements are too long for the mps device");
    const uint32_t type = kernels::code(rows.scalar_type());
    Tensor from = at::empty(rows.sizes(), rows.options().dtype(at::kLong)), to = at::empty_like(from);
    Tensor from_index = at::empty(rows.sizes(), rows.options().dtype(at::kInt)),
           to_index = at::empty_like(from_index);
    SortArgs args{kernels::address(rows),
                  0,
                  0,
                  0,
                  0,
                  static_cast<uint64_t>(rows.size(0)),
                  static_cast<uint32_t>(rows.size(1)),
                  kRun};
    const auto run = [&](const char* kernel, uint64_t threads) {
        args.from = kernels::address(from);
        args.to = kernels::address(to);
        args.from_index = kernels::address(from_index);
        args.to_index = kernels::address(to_index);
        kernels::KernelCall(kernel, {kernels::flat_workgroup(), 0, type, descending})
            .read(rows)
            .read(from)
            .read(from_index)
            .write(to)
            .write(to_index)
            .dispatch(args, kernels::flat_grid(threads));
        std::swap(from, to);
        std::swap(from_index, to_index);
    };
    run("sort_runs", args.rows * ((args.length + kRun - 1) / kRun));
    for (; args.width < args.length; args.width *= 2) run("sort_merge", args.rows * args.length);
    return from_index;
}

// Places [first, first + kept) of each sorted row of self along dim, into values and indices of the right
// sizes.
void take(const Tensor& self, int64_t dim, bool descending, int64_t first, int64_t kept, const Tensor& values,
          const Tensor& indices) {
    const Tensor rows = rows_of(self, dim);
    const Tensor order = sorted_order(rows, descending);
    const bool last = self.dim() == 0 || dim == self.dim() - 1;
    const bool direct = last && values.is_contiguous() && indices.is_contiguous();
    auto sizes = self.sizes().vec();
    if (self.dim() > 0) {
        sizes.erase(sizes.begin() + dim);
        sizes.push_back(kept);
    }
    const Tensor v = direct ? values : at::empty(sizes, values.options());
    const Tensor i = direct ? indices : at::empty(sizes, indices.options());
    const TakeArgs args{kernels::address(rows),
                        kernels::address(order),
                        kernels::address(v),
                        kernels::address(i),
                        static_cast<uint64_t>(rows.size(0)),
                        static_cast<uint32_t>(rows.size(1)),
                        static_cast<uint32_t>(first),
                        static_cast<uint32_t>(kept),
                        0};
    kernels::KernelCall("sort_take", {kernels::flat_workgroup(), 0, kernels::code(self.scalar_type())})
        .read(rows)
        .read(order)
        .write(v)
        .write(i)
        .dispatch(args, kernels::flat_grid(args.rows * args.kept));
    if (direct) return;
    values.copy_(self.dim() == 0 ? v : v.movedim(-1, dim));
    indices.copy_(self.dim() == 0 ? i : i.movedim(-1, dim));
}

// For each row the place of its median in ascending order, [..., 1]: of all elements, or the first NaN;
// without the NaNs where they are ignored.
Tensor median_place(const Tensor& rows, bool ignore_nan) {
    const int64_t n = rows.size(-1);
    auto sizes = rows.sizes().vec();
    sizes.back() = 1;
    const Tensor middle = at::full(sizes, (n - 1) / 2, rows.options().dtype(at::kLong));
    if (!rows.is_floating_point()) return middle;
    const Tensor numbers = at::isnan(rows).logical_not().sum(-1, true);
    if (ignore_nan) return at::div(numbers.sub(1), 2, "floor").clamp_min(0);
    return at::where(numbers.lt(n), numbers, middle);
}

using Outputs = std::tuple<Tensor&, Tensor&>;

Outputs median_along(const Tensor& self, int64_t dim, bool keepdim, bool ignore_nan, Tensor& values,
                     Tensor& indices) {
    at::assert_no_overlap(values, indices);
    dim = at::maybe_wrap_dim(dim, self.dim(), true);
    at::native::zero_numel_check_dims(self, dim, "median()");
    at::native::_reduction_with_indices_allocate_or_resize_output(values, indices, self, dim, keepdim);
    if (self.numel() > 0) {
        const Tensor rows = self.dim() == 0 ? self.view(1) : self.movedim(dim, -1);
        const auto [sorted, order] = at::sort(rows, true, -1, false);
        const Tensor place = median_place(rows, ignore_nan);
        const auto back = [&](const Tensor& t) { return self.dim() == 0 ? t.squeeze() : t.movedim(-1, dim); };
        values.copy_(back(sorted.gather(-1, place)));
        indices.copy_(back(order.gather(-1, place)));
    }
    if (!keepdim && self.dim() > 0) {
        values.squeeze_(dim);
        indices.squeeze_(dim);
    }
    return {values, indices};
}

Tensor median_of_all(const Tensor& self, bool ignore_nan) {
    if (self.numel() == 0) return at::full({}, std::numeric_limits<float>::quiet_NaN(), self.options());
    const Tensor flat = self.reshape(-1);
    return std::get<0>(at::sort(flat, true, -1, false)).gather(-1, median_place(flat, ignore_nan)).squeeze();
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
    if (self.numel() == 0 || k == 0) return;
    take(self, dim, largest, 0, self.dim() == 0 ? 1 : k, values, indices);
}

Outputs ANYMPS_FUNC(kthvalue_values)(const Tensor& self, int64_t k, int64_t dim_, bool keepdim,
                                     Tensor& values, Tensor& indices) {
    const int64_t dim = at::maybe_wrap_dim(dim_, self.dim(), true);
    const int64_t size = self.dim() > 0 ? self.size(dim) : 1;
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

Outputs ANYMPS_FUNC(median_dim_values)(const Tensor& self, int64_t dim, bool keepdim, Tensor& values,
                                       Tensor& indices) {
    return median_along(self, dim, keepdim, false, values, indices);
}

Outputs ANYMPS_FUNC(nanmedian_dim_values)(const Tensor& self, int64_t dim, bool keepdim, Tensor& values,
                                          Tensor& indices) {
    return median_along(self, dim, keepdim, true, values, indices);
}

Tensor ANYMPS_FUNC(median)(const Tensor& self) {
    return median_of_all(self, false);
}

Tensor ANYMPS_FUNC(nanmedian)(const Tensor& self) {
    return median_of_all(self, true);
}

}  // namespace anymps::ops
