#include "ops/indexing/indexed_rows.h"

#include <anymps/shaders/indexing/indexing.h>

#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/route_device.h"
#include "ops/indexing/segment_sum.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::indexing;

// A sort moves 60 to 80 bytes an index, and atomics 8 more an element than its reading: memory is read and
// written. And a sort takes a dozen small dispatches.
constexpr int64_t kMinWidth = 16;  // elements of a row

struct Rows {
    int64_t count, width;            // elements of a row
    int64_t dst_stride, src_stride;  // bytes from row to row: by position, or by index on the indexed side
    int64_t dst_step, src_step;      // bytes along a row; of one element: its size
    int64_t index_stride;            // bytes
};

std::optional<Rows> rows_of(const at::TensorIteratorBase& iter, const IndexedCopy& how,
                            std::span<const int64_t> strides) {
    if (iter.ntensors() != 3 || iter.numel() == 0 || iter.ndim() < 1 || iter.ndim() > 2) return std::nullopt;
    const auto item = static_cast<int64_t>(iter.element_size(0));
    const auto dst = iter.strides(0), src = iter.strides(1), index = iter.strides(2);
    Rows rows{.count = 1,
              .width = iter.shape()[0],
              .dst_stride = 0,
              .src_stride = 0,
              .dst_step = dst[0],
              .src_step = src[0],
              .index_stride = 0};
    int row_dim = 1;
    if (index[0] != 0) {
        if (iter.ndim() != 1) return std::nullopt;
        rows.width = 1;
        row_dim = 0;
    }
    if (rows.width == 1) rows.dst_step = rows.src_step = item;
    if (row_dim < iter.ndim()) {
        const auto d = static_cast<size_t>(row_dim);
        // Where the indexed side moves with the position as well, an index is not that of a row.
        if ((how.indexed_destination ? dst : src)[d] != 0) return std::nullopt;
        rows.count = iter.shape()[d];
        rows.dst_stride = dst[d];
        rows.src_stride = src[d];
        rows.index_stride = index[d];
    }
    (how.indexed_destination ? rows.dst_stride : rows.src_stride) = strides[0];
    return rows;
}

bool must_keep_order(const at::TensorIteratorBase& iter, const IndexedCopy& how) {
    return at::globalContext().deterministicAlgorithms() && how.indexed_destination && !how.any_order &&
           order_matters(how.operation, iter.dtype(0));
}

// [count, width] at a device address in the storage of one of the iterator's tensors; strides in bytes.
at::Tensor matrix(const at::TensorIteratorBase& iter, int arg, at::IntArrayRef sizes, int64_t stride,
                  int64_t step) {
    const at::Tensor& tensor = iter.tensor(arg);
    const auto item = static_cast<int64_t>(tensor.element_size());
    const auto begin = reinterpret_cast<int64_t>(tensor.storage().data());
    const auto offset = (reinterpret_cast<int64_t>(iter.data_ptr(arg)) - begin) / item;
    return sizes.size() == 1 ? tensor.as_strided(sizes, {stride / item}, offset)
                             : tensor.as_strided(sizes, {stride / item, step / item}, offset);
}

}  // namespace

uint32_t word_bytes(const at::TensorIteratorBase& iter, std::span<const int64_t> index_strides) {
    const auto item = static_cast<int64_t>(iter.element_size(0));
    if (iter.ndim() == 0 || iter.strides(0)[0] != item || iter.strides(1)[0] != item)
        return static_cast<uint32_t>(item);
    for (int t = 2; t < iter.ntensors(); ++t)
        if (iter.strides(t)[0] != 0) return static_cast<uint32_t>(item);
    int64_t all = 16 | iter.shape()[0] * item;
    for (int t = 0; t < 2; ++t) {
        all |= reinterpret_cast<int64_t>(iter.data_ptr(t));
        for (int d = 1; d < iter.ndim(); ++d) all |= iter.strides(t)[d];
    }
    for (const int64_t stride : index_strides) all |= stride;
    return static_cast<uint32_t>(all & -all);
}

bool may_reduce_rows(at::ScalarType type, int64_t elements, IndexedOperation operation) {
    if (operation == IndexedOperation::Assign || kernels::launch_config().software) return false;
    if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) return false;
    // Halves, too: in a float copy.
    const kernels::RouteDevice& t = kernels::route_device();
    const bool native = operation == IndexedOperation::Add && t.info->float32_atomic_add;
    return elements >= (native ? t.costs().sorted_rows_atomic : t.costs().sorted_rows_exchange);
}

bool reduce_rows(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
                 std::span<const int64_t> strides) {
    const at::ScalarType type = iter.dtype(0);
    if (!how.indexed_destination || iter.dtype(1) != type ||
        !may_reduce_rows(type, iter.numel(), how.operation))
        return false;
    const std::optional<Rows> rows = rows_of(iter, how, strides);
    if (!rows || rows->width < kMinWidth) return false;
    // Products in an order of their own stay with kernels that keep the CPU's.
    if (must_keep_order(iter, how) && (how.operation != IndexedOperation::Add || rows->count <= kLongestSum))
        return false;
    const auto item = static_cast<int64_t>(iter.element_size(0));
    // Rows that share memory must meet atomically.
    if (rows->dst_step != item || std::abs(rows->dst_stride) < rows->width * item ||
        rows->dst_stride % item != 0 || sizes[0] >= INT32_MAX || rows->count > UINT32_MAX / 2 ||
        rows->width > UINT32_MAX / 4096)
        return false;
    reduce_by_index(matrix(iter, 0, {sizes[0], rows->width}, rows->dst_stride, rows->dst_step),
                    matrix(iter, 1, {rows->count, rows->width}, rows->src_stride, rows->src_step),
                    matrix(iter, 2, {rows->count}, rows->index_stride, 0), how);
    return true;
}

bool move_rows(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
               std::span<const int64_t> strides) {
    if (how.replaces || must_keep_order(iter, how)) return false;
    const bool adds = how.operation == IndexedOperation::Add;
    const bool floats = iter.dtype(0) == at::kFloat || iter.dtype(0) == at::kComplexFloat;
    if (how.operation != IndexedOperation::Assign && !(adds && floats && !kernels::launch_config().software))
        return false;
    const std::optional<Rows> rows = rows_of(iter, how, strides);
    const auto item = static_cast<int64_t>(iter.element_size(0));
    if (!rows || rows->dst_step != item || rows->src_step != item) return false;
    const uint32_t word = adds ? sizeof(float) : word_bytes(iter, strides);
    const auto width = static_cast<uint64_t>(rows->width * item / word);
    const auto fits = [](int64_t stride) { return stride >= 0 && stride <= UINT32_MAX; };
    if (width > UINT32_MAX || sizes[0] > UINT32_MAX || !fits(rows->dst_stride) || !fits(rows->src_stride) ||
        !fits(rows->index_stride))
        return false;
    const auto error = runtime::encoder().error_slot(how.op);
    const uint32_t workgroup = kernels::flat_workgroup();
    // Parts of fewer than 2^32 words.
    const int64_t part = std::max<int64_t>(1, UINT32_MAX / static_cast<int64_t>(width));
    for (int64_t first = 0; first < rows->count; first += part) {
        const int64_t count = std::min(part, rows->count - first);
        const auto address = [&](int arg, int64_t stride, bool moves) {
            return reinterpret_cast<uint64_t>(iter.data_ptr(arg)) +
                   static_cast<uint64_t>(moves ? first * stride : 0);
        };
        const shader::IndexedRowsArgs args{
            .dst = address(0, rows->dst_stride, !how.indexed_destination),
            .src = address(1, rows->src_stride, how.indexed_destination),
            .index = address(2, rows->index_stride, true),
            .error = error.address,
            .skip = how.skip,
            .dst_stride = static_cast<uint32_t>(rows->dst_stride),
            .src_stride = static_cast<uint32_t>(rows->src_stride),
            .index_stride = static_cast<uint32_t>(rows->index_stride),
            .size = static_cast<uint32_t>(sizes[0]),
            .width = kernels::FastDivider(static_cast<uint32_t>(width)),
            .count = static_cast<uint32_t>(static_cast<uint64_t>(count) * width),
            .error_code = error.code};
        shader::indexed_rows
            .call({.workgroup = workgroup,
                   .index_type = kernels::code(iter.dtype(2)),
                   .indexed_destination = how.indexed_destination,
                   .operation = static_cast<uint32_t>(how.operation),
                   .wrap = how.wrap,
                   .word_bytes = word})
            .read(iter.tensor_base(1))
            .read(iter.tensor_base(2))
            .write(iter.tensor_base(0))
            .dispatch(args, kernels::flat_grid(kernels::ceil_div(args.count, shader::kPrefetch), workgroup));
    }
    return true;
}

}  // namespace anymps::ops
