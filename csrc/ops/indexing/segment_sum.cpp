#include "ops/indexing/segment_sum.h"

#include <ATen/ops/empty.h>
#include <anymps/shaders/segment_sum.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/sort_order.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::segment_sum;

// Short chunks fill the device, which narrow rows need more of; there are not many, since one thread may have
// to add up what all of them have.
constexpr int64_t kShortestChunk = 64, kFewChunks = 512, kMaxChunks = 4096, kThreads = 32768;

constexpr int64_t kNoSkip = std::numeric_limits<int64_t>::min();

// dense: the index of every row, or with is_sorted of every place in the order.
void run(const char* op, const at::Tensor& out, const at::Tensor& rows, const at::Tensor& dense,
         const at::Tensor& order, bool is_sorted, int64_t skip) {
    const int64_t count = dense.numel(), width = out.size(1);
    const int64_t most_chunks = std::clamp(kThreads / width, kFewChunks, kMaxChunks);
    const int64_t chunk = std::max(kShortestChunk, (count + most_chunks - 1) / most_chunks);
    const int64_t chunks = (count + chunk - 1) / chunk;
    TORCH_CHECK(count <= UINT32_MAX / 2 && chunks * width <= UINT32_MAX, op, ": ", count, " rows of ", width,
                " elements are too many for the mps device");
    const at::Tensor partials = at::empty({2, chunks, width}, rows.options().dtype(at::kFloat));
    const auto error = runtime::encoder().error_slot(op);
    const shader::SegmentArgs args{.out = kernels::address(out),
                                   .rows = kernels::address(rows),
                                   .index = kernels::address(dense),
                                   .order = kernels::address(order),
                                   .partials = kernels::address(partials),
                                   .error = error.address,
                                   .out_stride = out.stride(0),
                                   .row_stride = rows.stride(0),
                                   .column_stride = rows.stride(1),
                                   .skip = skip,
                                   .out_rows = static_cast<uint64_t>(out.size(0)),
                                   .count = static_cast<uint32_t>(count),
                                   .chunk = static_cast<uint32_t>(chunk),
                                   .chunks = static_cast<uint32_t>(chunks),
                                   .width = kernels::FastDivider(static_cast<uint32_t>(width)),
                                   .error_code = error.code};
    const auto launch = [&](const shader::SegmentKernel& kernel) {
        kernel
            .call({.workgroup = kernels::flat_workgroup(),
                   .type = kernels::code(rows.scalar_type()),
                   .out_type = kernels::code(out.scalar_type()),
                   .index_type = kernels::code(dense.scalar_type()),
                   .sorted = is_sorted})
            .read(rows)
            .read(dense)
            .read(order)
            .write(partials)
            .write(out)
            .dispatch(args, kernels::flat_grid(chunks * width));
    };
    launch(shader::segment_sum);
    if (chunks > 1) launch(shader::segment_sum_join);
}

}  // namespace

void segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows, const at::Tensor& index,
                 int64_t skip) {
    if (index.numel() == 0 || out.size(1) == 0) return;
    const at::Tensor dense = index.contiguous();
    // `skip` may be beyond out. Another index out of range may lie anywhere in this order: what is written
    // then does not matter.
    const auto bits =
        static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(std::max(out.size(0) - 1, skip))));
    run(op, out, rows, dense, sorted_order(dense.view({1, -1}), false, bits), false, skip);
}

void sorted_segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows,
                        const at::Tensor& index, const at::Tensor& order) {
    if (index.numel() == 0 || out.size(1) == 0) return;
    run(op, out, rows, index.contiguous(), order, true, kNoSkip);
}

}  // namespace anymps::ops
