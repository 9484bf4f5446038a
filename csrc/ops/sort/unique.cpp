// Distinct elements and rows. The size of the result is data: each of these waits for the device once.
#include <anymps/ops/sort/unique_ops.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/any.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "ops/sort/histogram.h"
#include "ops/sort/sort_order.h"

namespace anymps::ops {
namespace {

using Unique = std::tuple<Tensor, Tensor, Tensor>;

Tensor no_indices(const Tensor& self) {
    return at::empty({0}, self.options().dtype(at::kLong));
}

// True where a run of equal rows begins; rows: [n, m], n >= 1.
Tensor run_begins(const Tensor& rows) {
    const int64_t n = rows.size(0);
    const Tensor begins = at::empty({n}, rows.options().dtype(at::kBool));
    begins.narrow(0, 0, 1).fill_(true);
    Tensor later = begins.narrow(0, 1, n - 1);
    const Tensor row = rows.narrow(0, 1, n - 1), before = rows.narrow(0, 0, n - 1);
    if (rows.size(1) == 1) {
        at::ne_out(later, row.select(1, 0), before.select(1, 0));
    } else {
        at::any_out(later, row.ne(before), 1);
    }
    return begins;
}

Tensor run_lengths(const Tensor& starts, int64_t n) {
    const Tensor ends =
        at::cat({starts.narrow(0, 1, starts.numel() - 1), at::full({1}, n, starts.options())});
    return ends.sub_(starts);
}

// Runs of n >= 1 rows: the position of each first row, the run's number for every row, the lengths.
Unique runs(const Tensor& rows, bool inverse, bool counts) {
    const Tensor begins = run_begins(rows);
    const Tensor starts = at::nonzero(begins).squeeze(1);
    return {starts, inverse ? begins.cumsum(0).sub_(1) : no_indices(rows),
            counts ? run_lengths(starts, rows.size(0)) : no_indices(rows)};
}

// Types that sort and compare by value.
Tensor sortable(const Tensor& self) {
    return self.scalar_type() == at::kBool ? self.to(at::kByte) : self;
}

struct Range {
    int64_t least, size;
};

// Counting is worth a look at the range from so many elements on, and takes as long as sorting where the
// range has half as many numbers as there are elements.
constexpr int64_t kMinToCount = 1 << 16, kElementsANumber = 8;

// The range of whole numbers that are to be counted, not sorted. Waits for the device where the type does not
// say.
std::optional<Range> range_to_count(const Tensor& flat) {
    if (flat.numel() < kMinToCount) return std::nullopt;
    switch (flat.scalar_type()) {
        case at::kByte:
            return Range{0, 1 << 8};
        case at::kChar:
            return Range{std::numeric_limits<int8_t>::min(), 1 << 8};
        case at::kShort:
            return Range{std::numeric_limits<int16_t>::min(), 1 << 16};
        case at::kInt:
        case at::kLong:
            break;
        default:
            return std::nullopt;
    }
    const Tensor ends = extremes(flat).to(at::kLong);
    const int64_t least = ends.const_data_ptr<int64_t>()[0], most = ends.const_data_ptr<int64_t>()[1];
    const uint64_t beyond = static_cast<uint64_t>(most) - static_cast<uint64_t>(least);
    const int64_t limit =
        std::min<int64_t>(flat.numel() / kElementsANumber, std::numeric_limits<int32_t>::max());
    if (beyond >= static_cast<uint64_t>(limit)) return std::nullopt;
    return Range{least, static_cast<int64_t>(beyond) + 1};
}

// What runs() gives of sorted elements, with the values in place of their positions.
Unique counted(const Tensor& flat, Range range, bool inverse, bool counts) {
    const Tensor times = count_integers(flat, range.least, range.size);
    const Tensor positions = at::nonzero(times).squeeze(1);
    Tensor ranks = no_indices(flat);
    if (inverse) {
        const Tensor rank = times.ne(0).cumsum(0).sub_(1);
        ranks = rank.index_select(0, flat.to(at::kLong).sub(range.least));
    }
    return {positions.add(range.least).to(flat.scalar_type()), ranks,
            counts ? times.index_select(0, positions).to(at::kLong) : no_indices(flat)};
}

// For every column of [n, m] the rank of its elements, equal ones having the same: 0, 1, ... without gaps.
Tensor column_ranks(const Tensor& columns) {
    const int64_t n = columns.size(0);
    const auto [sorted, order] = columns.sort(0);
    const Tensor changed = sorted.narrow(0, 1, n - 1).ne(sorted.narrow(0, 0, n - 1));
    const Tensor ranks = at::constant_pad_nd(changed.to(at::kLong), {0, 0, 1, 0}).cumsum(0);
    return at::empty(columns.sizes(), ranks.options()).scatter_(0, order, ranks);
}

// The rank of each row in lexicographic order: ranks of pairs of columns, of pairs of those, and so on.
Tensor row_ranks(const Tensor& rows) {
    const int64_t n = rows.size(0);
    Tensor ranks = column_ranks(sortable(rows));
    while (ranks.size(1) > 1) {
        const int64_t pairs = ranks.size(1) / 2;
        const Tensor even = ranks.narrow(1, 0, 2 * pairs).view({n, pairs, 2});
        Tensor merged = even.select(2, 0).mul(n).add_(even.select(2, 1));
        if (ranks.size(1) % 2 != 0) merged = at::cat({merged, ranks.narrow(1, 2 * pairs, 1)}, 1);
        ranks = column_ranks(merged);
    }
    return ranks.select(1, 0);
}

Tensor rows_of(const Tensor& self, int64_t dim) {
    return self.moveaxis(dim, 0).reshape({self.size(dim), -1}).contiguous();
}

// Elements of no rows: nothing is distinct; a dimension of size 0 elsewhere is an error.
bool is_empty(const Tensor& self, int64_t dim) {
    int64_t zeros = 0;
    for (const int64_t size : self.sizes()) zeros += size == 0;
    if (self.size(dim) == 0) {
        TORCH_CHECK(zeros == 1,
                    "Number of zero sized dimensions is more than one, so unique cannot be applied ");
        return true;
    }
    TORCH_CHECK(zeros == 0,
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    return false;
}

Unique empty_result(const Tensor& self) {
    return {at::empty(self.sizes(), self.options()), no_indices(self), no_indices(self)};
}

}  // namespace

Unique ANYMPS_FUNC(_unique2)(const Tensor& self, bool sorted, bool return_inverse, bool return_counts) {
    const int64_t n = self.numel();
    if (n == 0) {
        const Tensor inverse =
            return_inverse ? at::empty(self.sizes(), self.options().dtype(at::kLong)) : no_indices(self);
        return {at::empty({0}, self.options()), inverse, no_indices(self)};
    }
    const Tensor flat = sortable(self.contiguous()).view({n});
    if (const auto range = range_to_count(flat)) {
        const auto [found, ranks, times] = counted(flat, *range, return_inverse, return_counts);
        return {found.to(self.scalar_type()), return_inverse ? ranks.view(self.sizes()) : ranks, times};
    }
    Tensor values, order;
    if (return_inverse) {
        std::tie(values, order) = flat.sort();
    } else {
        values = sorted_values(flat.view({1, n})).view({n});
    }
    if (!return_inverse && !return_counts) {
        const Tensor distinct = at::masked_select(values, run_begins(values.unsqueeze(1)));
        return {distinct.to(self.scalar_type()), no_indices(self), no_indices(self)};
    }
    auto [starts, run, counts] = runs(values.unsqueeze(1), return_inverse, return_counts);
    Tensor inverse = run;
    if (return_inverse) inverse = at::empty({n}, run.options()).scatter_(0, order, run).view(self.sizes());
    return {values.index_select(0, starts).to(self.scalar_type()), inverse, counts};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(_unique)(const Tensor& self, bool sorted, bool return_inverse) {
    auto [values, inverse, counts] = _unique2(self, sorted, return_inverse, false);
    return {values, inverse};
}

Unique ANYMPS_FUNC(unique_dim)(const Tensor& self, int64_t dim, bool sorted, bool return_inverse,
                               bool return_counts) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    if (is_empty(self, dim)) return empty_result(self);
    // Rows with NaN have no order: what comes of them is up to the CPU's sort.
    if (self.is_floating_point() && self.isnan().any().item<bool>()) {
        const auto [rows, inverse, counts] =
            at::unique_dim(self.cpu(), dim, sorted, return_inverse, return_counts);
        return {rows.to(self.device()), inverse.to(self.device()), counts.to(self.device())};
    }
    const Tensor ranks = row_ranks(rows_of(self, dim));
    const int64_t distinct = ranks.max().item<int64_t>() + 1;
    const Tensor positions = at::arange(ranks.numel(), ranks.options().dtype(at::kInt));
    const Tensor first =
        at::full({distinct}, ranks.numel(), positions.options()).scatter_reduce_(0, ranks, positions, "amin");
    const Tensor counts =
        return_counts ? at::zeros({distinct}, ranks.options()).scatter_add_(0, ranks, at::ones_like(ranks))
                      : no_indices(self);
    return {self.index_select(dim, first), return_inverse ? ranks : no_indices(self), counts};
}

Unique ANYMPS_FUNC(unique_dim_consecutive)(const Tensor& self, int64_t dim, bool return_inverse,
                                           bool return_counts) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    if (is_empty(self, dim)) return empty_result(self);
    auto [starts, inverse, counts] = runs(rows_of(self, dim), return_inverse, return_counts);
    return {self.index_select(dim, starts), inverse, counts};
}

Unique ANYMPS_FUNC(unique_consecutive)(const Tensor& self, bool return_inverse, bool return_counts,
                                       std::optional<int64_t> dim) {
    // One dimension is the same either way, and its errors are those of the elements' version.
    if (dim.has_value() && !(self.dim() == 1 && at::maybe_wrap_dim(*dim, 1) == 0)) {
        return unique_dim_consecutive(self, *dim, return_inverse, return_counts);
    }
    const int64_t n = self.numel();
    if (n == 0) {
        const Tensor inverse =
            return_inverse ? at::empty(self.sizes(), self.options().dtype(at::kLong)) : no_indices(self);
        return {at::empty({0}, self.options()), inverse, no_indices(self)};
    }
    const Tensor flat = self.contiguous().view({n});
    auto [starts, inverse, counts] = runs(flat.unsqueeze(1), return_inverse, return_counts);
    return {flat.index_select(0, starts), return_inverse ? inverse.view(self.sizes()) : inverse, counts};
}

}  // namespace anymps::ops
