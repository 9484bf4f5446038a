#include "ops/sparse/coordinates.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <bit>
#include <limits>
#include <vector>

#include "ops/indexing/segment_sum.h"
#include "ops/sort/sort_order.h"
#include "runtime/sparse_members.h"

namespace anymps::ops {

at::Tensor flat_keys(const at::Tensor& indices, at::IntArrayRef sizes) {
    if (indices.size(0) == 0) return at::zeros({indices.size(1)}, indices.options());
    at::Tensor keys = indices.select(0, 0);
    for (int64_t d = 1; d < indices.size(0); ++d) keys = at::add(indices.select(0, d), keys, sizes[d]);
    return keys.contiguous();
}

at::Tensor order_of_keys(const at::Tensor& keys, at::IntArrayRef sizes, at::Tensor* sorted) {
    const auto places = static_cast<uint64_t>(c10::multiply_integers(sizes));
    const auto bits = static_cast<uint32_t>(std::bit_width(places > 0 ? places - 1 : 0));
    const at::Tensor order = sorted_order(keys.contiguous().view({1, -1}), false, bits, sorted).view({-1});
    if (sorted != nullptr) *sorted = sorted->view({-1});
    return order;
}

at::Tensor sparse_tensor(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes,
                         bool coalesced) {
    const int64_t dense_dim = values.dim() - 1;
    return at::_sparse_coo_tensor_with_dims_and_tensors(static_cast<int64_t>(sizes.size()) - dense_dim,
                                                        dense_dim, sizes, indices, values,
                                                        values.options().layout(at::kSparse), coalesced);
}

at::Tensor& become(at::Tensor& out, const at::Tensor& value) {
    using at::sparse_csr::is_sparse_compressed;
    TORCH_CHECK(
        out.is_sparse() ? value.is_sparse() : is_sparse_compressed(out) && is_sparse_compressed(value),
        "expected a result of layout ", value.layout(), ", but got ", out.layout());
    runtime::take_members(out, value);
    return out;
}

at::Tensor& resize_dense(const char* op, at::Tensor& out, at::IntArrayRef sizes) {
    TORCH_CHECK(out.layout() == at::kStrided, op, ": expected a strided result, but got one of layout ",
                out.layout());
    at::native::resize_output(out, sizes);
    return out;
}

at::Tensor per_element(const at::Tensor& numbers, int64_t dims) {
    std::vector<int64_t> sizes(dims, 1);
    sizes[0] = numbers.numel();
    return numbers.view(sizes);
}

at::Tensor row_pointers(const at::Tensor& sorted, int64_t size, at::ScalarType type) {
    const at::Tensor rows = at::arange(size + 1, sorted.options());
    return at::searchsorted(sorted.contiguous(), rows, /*out_int32=*/type == at::kInt);
}

at::Tensor rows_of_elements(const at::Tensor& pointers, int64_t nnz) {
    const int64_t batches = c10::multiply_integers(pointers.sizes().slice(0, pointers.dim() - 1));
    const at::Tensor ends = pointers.narrow(-1, 1, pointers.size(-1) - 1).reshape({batches, -1}).contiguous();
    const at::Tensor elements = at::arange(nnz, ends.options()).expand({batches, nnz}).contiguous();
    return at::searchsorted(ends, elements, /*out_int32=*/ends.scalar_type() == at::kInt, /*right=*/true);
}

std::pair<at::Tensor, at::Tensor> find_keys(const at::Tensor& among, const at::Tensor& keys) {
    const at::Tensor position = at::searchsorted(among, keys).clamp_max_(among.numel() - 1);
    return {among.index_select(0, position).eq(keys), position};
}

at::Tensor values_of_keys(const at::Tensor& values, const at::Tensor& among, const at::Tensor& keys) {
    const auto [found, position] = find_keys(among, keys);
    return values.index_select(0, position).masked_fill_(per_element(found.logical_not(), values.dim()), 0);
}

std::pair<at::Tensor, at::Tensor> positions_of_rows(const at::Tensor& pointers, const at::Tensor& rows) {
    const at::Tensor begins = pointers.index_select(0, rows);
    const at::Tensor counts = pointers.index_select(0, rows.add(1)).sub_(begins);
    const at::Tensor which = at::repeat_interleave(counts);
    // The position in the row is the place in `which` less that of the row's first.
    const at::Tensor shift = begins.sub(counts.cumsum(0).sub_(counts));
    return {which, at::arange(which.numel(), rows.options()).add_(shift.index_select(0, which))};
}

at::Tensor add_by_index(const at::Tensor& values, const at::Tensor& index, int64_t size) {
    auto sizes = values.sizes().vec();
    sizes[0] = size;
    const at::Tensor sums = at::zeros(sizes, values.options());
    if (sums.numel() == 0 || values.numel() == 0) return sums;
    if (at::isFloatingType(values.scalar_type())) {
        segment_sum("coalesce", sums.view({size, -1}), values.reshape({values.size(0), -1}), index,
                    std::numeric_limits<int64_t>::min());
        return sums;
    }
    at::Tensor to = sums;
    return to.index_add_(0, index, values);
}

at::Tensor add_by_run(const at::Tensor& values, const at::Tensor& order, const at::Tensor& run,
                      int64_t size) {
    if (!at::isFloatingType(values.scalar_type()) || values.numel() == 0) {
        const at::Tensor index = at::empty_like(run).scatter_(0, order.to(at::kLong), run);
        return add_by_index(values, index, size);
    }
    auto sizes = values.sizes().vec();
    sizes[0] = size;
    const at::Tensor sums = at::empty(sizes, values.options());
    sorted_segment_sum("coalesce", sums.view({size, -1}), values.reshape({values.size(0), -1}), run, order);
    return sums;
}

}  // namespace anymps::ops
