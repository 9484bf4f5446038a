#include "ops/rnn/steps.h"

#include <anymps/shaders/rnn/recurrent_coopmat.h>
#include <anymps/shaders/rnn/rnn_pack.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "gemm/tiles.h"
#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/kernel.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;

constexpr StepTile kSoftwareTile{0, 8, 32, 8, 4, 1};
// Costs of one k: loads and products of the threads, or of small tiles what they load from a cache that all
// share.
constexpr StepTile kGpuTiles[] = {
    {1, 32, 32, 256, 32, 12},
    {2, 32, 16, 256, 64, 8},
    {3, 16, 16, 256, 128, 5},
};

// Of 16 bits, on matrix units, with 4 or 8 slices of k. NVIDIA's driver gives the workgroups of a compute
// unit 48 KiB of shared memory together.
constexpr uint32_t shared_bytes(uint32_t slices) {
    return slices * shaders::recurrent_coopmat::kSlice * 16;
}
constexpr StepTile kMatrixF16[] = {{4, 32, 32, 128, 128, 2, 2, shared_bytes(4)},
                                   {6, 32, 32, 256, 256, 1, 1, shared_bytes(8)}};
constexpr StepTile kMatrixBf16[] = {{5, 32, 32, 128, 128, 2, 2, shared_bytes(4)},
                                    {7, 32, 32, 256, 256, 1, 1, shared_bytes(8)}};

const StepTile& cheapest(std::span<const StepTile> tiles, int64_t rows, int64_t columns) {
    const vulkan::DeviceInfo& info = runtime::device().info();
    const auto time = [&](const StepTile& tile) {
        if (tile.shared_bytes > info.shared_memory_bytes) return UINT64_MAX;
        const uint64_t groups = ceil_div(rows, tile.m) * ceil_div(columns, tile.n);
        return ceil_div(groups, info.compute_units() * tile.occupancy) * tile.cost;
    };
    return *std::ranges::min_element(tiles, {}, time);
}

}  // namespace

std::vector<Step> steps_of(at::IntArrayRef batch_sizes, bool reverse) {
    std::vector<Step> steps;
    int64_t first = 0;
    for (const int64_t rows : batch_sizes) {
        steps.push_back({first, rows, 0, 0, 0});
        first += rows;
    }
    if (reverse) std::ranges::reverse(steps);
    for (size_t i = 1; i < steps.size(); ++i) {
        steps[i].prev_first = steps[i - 1].first;
        steps[i].prev_rows = steps[i - 1].rows;
        steps[i - 1].next_rows = steps[i].rows;
    }
    return steps;
}

const StepTile& step_tile(at::ScalarType type, int64_t rows, int64_t columns) {
    const vulkan::DeviceInfo& info = runtime::device().info();
    // Matrix tiles are 32 columns wide at least: with fewer of them most of the device waits (a layer of 128
    // units, batch 32, on an H100: 1.59 ms against 1.25).
    constexpr int64_t kMinMatrixColumns = 256;
    const bool wide = columns >= kMinMatrixColumns;
    switch (
        gemm::choose_arithmetic(info, wide && type == at::kHalf, wide && type == at::kBFloat16, false, 3)) {
        case gemm::Arithmetic::F16:
            return cheapest(kMatrixF16, rows, columns);
        case gemm::Arithmetic::BF16:
            return cheapest(kMatrixBf16, rows, columns);
        default:
            return kernels::launch_config().software ? kSoftwareTile : cheapest(kGpuTiles, rows, columns);
    }
}

uint32_t step_subgroup(const StepTile& tile) {
    return tile.on_matrix_units() ? gemm::matrix_subgroup(runtime::device().info())
                                  : kernels::launch_config().subgroup;
}

StepOperand::StepOperand(const at::Tensor& source, int64_t n, int64_t k, int64_t stride_n, int64_t stride_k,
                         int64_t gates, int64_t copies) {
    const int64_t panels = padded(gates > 1 ? n / gates * 4 : n, kPanel) / kPanel,
                  depth = padded(k, kDepthPad);
    tensor = at::empty({copies, panels, depth, kPanel}, source.options());
    // Of a CPU's cache a whole line.
    const uint32_t each = kernels::launch_config().software ? 16 : 4;
    const auto count = static_cast<uint32_t>(tensor.numel() / each);
    const uint32_t workgroup = kernels::flat_workgroup();
    const auto type = kernels::integer_of_size(tensor.element_size());
    shaders::rnn_pack::rnn_pack.call({.workgroup = workgroup, .type = kernels::code(type), .each = each})
        .read(source)
        .write(tensor)
        .dispatch({.out = kernels::address(tensor),
                   .self = kernels::address(source),
                   .stride_n = stride_n,
                   .stride_k = stride_k,
                   .n = static_cast<uint32_t>(n),
                   .k = static_cast<uint32_t>(k),
                   .count = count,
                   .panels = kernels::FastDivider(static_cast<uint32_t>(panels)),
                   .depth = kernels::FastDivider(static_cast<uint32_t>(depth / each)),
                   .gates = static_cast<uint32_t>(gates)},
                  kernels::flat_grid(count, workgroup));
}

StepOperand::StepOperand(at::TensorOptions options, int64_t n, int64_t k, int64_t copies)
    : tensor(at::zeros({copies, padded(n, kPanel) / kPanel, padded(k, kDepthPad), kPanel}, options)) {}

uint64_t StepOperand::address(int64_t copy) const {
    return kernels::address(tensor) + static_cast<uint64_t>(copy) * bytes();
}

}  // namespace anymps::ops
