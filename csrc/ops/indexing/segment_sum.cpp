#include "ops/indexing/segment_sum.h"

#include <ATen/ops/empty.h>
#include <anymps/shaders/indexing/segment_sum.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/sort/radix_sort.h"
#include "ops/sort/sort_order.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::segment_sum;

// Short chunks fill the device, which narrow rows need more of; there are not many, since one thread may have
// to add up what all of them have.
constexpr int64_t kShortestChunk = 64, kFewChunks = 512, kMaxChunks = 4096, kThreads = 65536;

constexpr int64_t kNoSkip = std::numeric_limits<int64_t>::min();

constexpr int64_t kVector = 4;  // columns of a wide load

bool aligned(const at::Tensor& rows) {
    const auto bytes = std::min<int64_t>(16, kVector * rows.element_size());
    return rows.size(1) % kVector == 0 && rows.stride(1) == 1 && rows.stride(0) % kVector == 0 &&
           kernels::address(rows) % static_cast<uint64_t>(bytes) == 0;
}

struct Segments {
    const at::Tensor& index;  // of every row, or with is_sorted of every place in the order; dense
    const at::Tensor& order;
    bool is_sorted;
    int64_t skip;  // in `index`
    IndexedOperation operation = IndexedOperation::Add;
    bool accumulate = false;
};

void run(const char* op, const at::Tensor& out, const at::Tensor& rows, const Segments& segments) {
    const bool vectors = !kernels::launch_config().software && aligned(out) && aligned(rows);
    const int64_t vector = vectors ? kVector : 1;
    const int64_t count = segments.index.numel(), pieces = out.size(1) / vector;
    const int64_t most_chunks = std::clamp(kThreads / pieces, kFewChunks, kMaxChunks);
    const int64_t chunk = std::max(kShortestChunk, (count + most_chunks - 1) / most_chunks);
    const int64_t chunks = (count + chunk - 1) / chunk;
    TORCH_CHECK(count <= UINT32_MAX / 2 && chunks * pieces <= UINT32_MAX, op, ": ", count, " rows of ",
                out.size(1), " elements are too many for the mps device");
    const at::Tensor partials = at::empty({2, chunks, out.size(1)}, rows.options().dtype(at::kFloat));
    const auto error = runtime::encoder().error_slot(op);
    const shader::SegmentArgs args{.out = kernels::address(out),
                                   .rows = kernels::address(rows),
                                   .index = kernels::address(segments.index),
                                   .order = kernels::address(segments.order),
                                   .partials = kernels::address(partials),
                                   .error = error.address,
                                   .out_stride = out.stride(0),
                                   .row_stride = rows.stride(0),
                                   .column_stride = rows.stride(1),
                                   .skip = segments.skip,
                                   .out_rows = static_cast<uint64_t>(out.size(0)),
                                   .count = static_cast<uint32_t>(count),
                                   .chunk = static_cast<uint32_t>(chunk),
                                   .chunks = static_cast<uint32_t>(chunks),
                                   .width = kernels::FastDivider(static_cast<uint32_t>(pieces)),
                                   .error_code = error.code};
    const auto launch = [&](const auto& kernel) {
        kernel
            .call({.workgroup = kernels::flat_workgroup(),
                   .type = kernels::code(rows.scalar_type()),
                   .out_type = kernels::code(out.scalar_type()),
                   .index_type = kernels::code(segments.index.scalar_type()),
                   .sorted = segments.is_sorted,
                   .vector = static_cast<uint32_t>(vector),
                   .operation = static_cast<uint32_t>(segments.operation),
                   .accumulate = segments.accumulate})
            .read(rows)
            .read(segments.index)
            .read(segments.order)
            .write(partials)
            .write(out)
            .dispatch(args, kernels::flat_grid(chunks * pieces));
    };
    launch(shader::segment_sum);
    if (chunks > 1) launch(shader::segment_sum_join);
}

// Keys of 31 bits: half of what int64 indices are for the sort. `size` stands for indices that are left out.
at::Tensor keys_of(const at::Tensor& index, int64_t size, const IndexedCopy& how) {
    const at::Tensor keys = at::empty({1, index.numel()}, index.options().dtype(at::kInt));
    const auto error = runtime::encoder().error_slot(how.op);
    const shader::KeyArgs args{.keys = kernels::address(keys),
                               .index = kernels::address(index),
                               .error = error.address,
                               .index_stride = index.stride(0) * static_cast<int64_t>(index.element_size()),
                               .size = size,
                               .skip = how.skip,
                               .count = static_cast<uint32_t>(index.numel()),
                               .error_code = error.code};
    shader::segment_keys
        .call({.workgroup = kernels::flat_workgroup(),
               .index_type = kernels::code(index.scalar_type()),
               .wrap = how.wrap})
        .read(index)
        .write(keys)
        .dispatch(args, kernels::flat_grid(args.count));
    return keys;
}

}  // namespace

void reduce_by_index(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& index,
                     const IndexedCopy& how) {
    if (index.numel() == 0 || out.size(1) == 0) return;
    const int64_t size = out.size(0);
    TORCH_CHECK(size < INT32_MAX && index.numel() <= UINT32_MAX / 2, how.op, ": ", index.numel(),
                " indices of ", size, " rows are too many for the mps device");
    const at::Tensor keys = keys_of(index, size, how);
    const bool radix = sorts_by_radix(keys);
    at::Tensor sorted;
    const auto bits = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(size)));
    const at::Tensor order = sorted_order(keys, false, bits, radix ? &sorted : nullptr);
    run(how.op, out, rows,
        {.index = radix ? sorted : keys,
         .order = order,
         .is_sorted = radix,
         .skip = size,
         .operation = how.operation,
         .accumulate = !how.replaces});
}

void segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows, const at::Tensor& index,
                 int64_t skip) {
    reduce_by_index(out, rows, index,
                    {.op = op, .operation = IndexedOperation::Add, .skip = skip, .replaces = true});
}

void sorted_segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows,
                        const at::Tensor& index, const at::Tensor& order) {
    if (index.numel() == 0 || out.size(1) == 0) return;
    const at::Tensor dense = index.contiguous();
    run(op, out, rows, {.index = dense, .order = order, .is_sorted = true, .skip = kNoSkip});
}

}  // namespace anymps::ops
