#include "ops/indexing/ordered_rows.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "ops/indexing/segment_sum.h"

namespace anymps::ops {
namespace {

using at::Tensor;

void add(const Tensor& dst, const Tensor& src, const Tensor& rows, const IndexedCopy& how) {
    if (dst.is_complex()) {
        const Tensor parts = at::view_as_real(src.resolve_conj()).flatten(1);
        const Tensor sums = at::zeros({dst.size(0), parts.size(1)}, parts.options());
        segment_sum(how.op, sums, parts, rows, how.skip);
        at::view_as_real(dst).add_(sums.view({dst.size(0), -1, 2}));
        return;
    }
    const Tensor sums = at::zeros(dst.sizes(), dst.options().dtype(at::kFloat));
    segment_sum(how.op, sums, src, rows, how.skip);
    dst.add_(sums);
}

// The last of the rows for one place is left.
void assign(const Tensor& dst, const Tensor& src, const Tensor& rows, IndexedCopy how) {
    const int64_t pairs = rows.size(0) - 1;
    const auto [sorted, order] = at::sort(rows, /*stable=*/true, 0, /*descending=*/false);
    const Tensor last = at::ones_like(sorted, at::kBool);
    last.narrow(0, 0, pairs).copy_(sorted.narrow(0, 1, pairs).ne(sorted.narrow(0, 0, pairs)));
    const Tensor kept = at::where(last, sorted, how.skip).unsqueeze(1).expand({-1, dst.size(1)});
    how.any_order = true;
    indexed_copy_dim(dst, src.index_select(0, order), kept, 0, how);
}

}  // namespace

void ordered_rows(const Tensor& dst, const Tensor& src, const Tensor& index, const IndexedCopy& how) {
    TORCH_INTERNAL_ASSERT(how.indexed_destination && how.skip == IndexedCopy{}.skip);
    if (src.numel() == 0) return;
    Tensor rows = index.to(at::kLong);
    if (how.wrap) rows = at::where(rows.lt(0), rows.add(dst.size(0)), rows);
    IndexedCopy direct = how;
    direct.wrap = false;
    if (how.operation == IndexedOperation::Assign) {
        assign(dst, src, rows, direct);
    } else {
        TORCH_INTERNAL_ASSERT(how.operation == IndexedOperation::Add &&
                              order_matters(how.operation, dst.scalar_type()));
        add(dst, src, rows, direct);
    }
}

}  // namespace anymps::ops
