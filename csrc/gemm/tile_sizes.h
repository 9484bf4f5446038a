// How a row of a tile table (tile_rows.h) becomes a tile: it names a kernel, whose arguments say the sizes,
// and adds what is measured.
#pragma once

#include <anymps/shaders/gemm/gemm_coopmat.h>
#include <anymps/shaders/instances.h>

#include <algorithm>
#include <string_view>

#include "gemm/tiles.h"

namespace anymps::gemm::tile_rows {

constexpr uint32_t kVec8Bytes = 16;
// Shared memory that a subgroup's results pass through on their way out.
constexpr uint32_t kStagingBytes = shaders::gemm_coopmat::kStagingWords * kVec8Bytes;

constexpr void set_sizes(Tile& tile, int64_t m, int64_t n, int64_t threads, int64_t shared_bytes) {
    tile.m = static_cast<uint32_t>(m);
    tile.n = static_cast<uint32_t>(n);
    tile.workgroup = static_cast<uint32_t>(threads);
    tile.shared_bytes = static_cast<uint32_t>(shared_bytes);
}

// shaders/gemm/gemm_simt.slang: shared memory that every device has.
constexpr void set_sizes(Tile& tile, const shaders::matmul::MatmulSharedInstance& i) {
    set_sizes(tile, i.tile_m, i.tile_n, i.tile_m / i.thread_m * (i.tile_n / i.thread_n), 0);
}

// Operands in shared memory: rows of so many vec8, and one that moves the next row to other banks. A subgroup
// of 32 has a warp tile.
constexpr void set_staged_sizes(Tile& tile, const auto& i, int64_t row_bytes) {
    const int64_t warps = i.tile_m / i.warp_m * (i.tile_n / i.warp_n);
    set_sizes(tile, i.tile_m, i.tile_n, warps * 32,
              std::max<int64_t>((i.tile_m + i.tile_n) * row_bytes, warps * kStagingBytes));
}

// shaders/gemm/gemm_coopmat.slang: each term is a tile of its own.
constexpr void set_sizes(Tile& tile, const shaders::matmul::MatmulMatrixInstance& i) {
    set_staged_sizes(tile, i, std::max<int64_t>(i.terms, 1) * (i.tile_k / 8 + 1) * kVec8Bytes);
}
constexpr void set_sizes(Tile& tile, const shaders::conv::ConvMatrixInstance& i) {
    set_staged_sizes(tile, i, i.terms * (i.tile_k / 8 + 1) * kVec8Bytes);
}
constexpr void set_sizes(Tile& tile, const shaders::conv::ConvTilesInstance& i) {
    set_staged_sizes(tile, i, (i.tile_k / 8 + 1) * kVec8Bytes);
}
// shaders/gemm/gemm_packed.slang: a row has its terms side by side.
constexpr void set_sizes(Tile& tile, const shaders::matmul_packed::MatmulPackedInstance& i) {
    set_staged_sizes(tile, i, (i.terms * i.tile_k / 8 + 1) * kVec8Bytes);
}

// shaders/gemm/gemm_pipelined.slang: 64 k, of rows along k or of k along the rows.
constexpr void set_sizes(Tile& tile, const shaders::matmul::MatmulPipelinedInstance& i) {
    const auto operand = [](int64_t rows) {
        return std::max(rows * (64 / 8 + 1), 64 * (rows / 8 + 1)) * kVec8Bytes;
    };
    set_sizes(tile, i.tile_m, i.tile_n, i.tile_m / i.count_m * (i.tile_n / i.count_n) / 256 * i.lanes,
              operand(i.tile_m) + operand(i.tile_n));
    tile.pipelined = true;
}

// shaders/gemm/gemm_fragments.slang: results alone pass through shared memory.
constexpr void set_fragment_sizes(Tile& tile, const auto& i, bool in_place) {
    const int64_t warps = i.warps_m * i.warps_n;
    set_sizes(tile, i.warps_m * i.count_m * 16, i.warps_n * i.count_n * 16, warps * i.lanes,
              in_place ? 0 : warps * kStagingBytes);
    tile.fragments = true;
    tile.in_place = in_place;
}
constexpr void set_sizes(Tile& tile, const shaders::matmul_fragments::MatmulFragmentsInstance& i) {
    set_fragment_sizes(tile, i, i.in_place != 0);
    tile.panel = i.count_n == 3 ? 48 : 64;
}
constexpr void set_sizes(Tile& tile, const shaders::matmul_scaled::MatmulScaledFragmentsInstance& i) {
    set_fragment_sizes(tile, i, false);
}

// What only measurements tell: fields of Tile.
struct TileCosts {
    uint32_t cost_per_k = 0, occupancy = 1, prologue_k = 0, max_tail_split = 1, registers = 0;
};

consteval Tile with_costs(const char* kernel, const TileCosts& costs) {
    return {.kernel = kernel,
            .m = 0,
            .n = 0,
            .workgroup = 0,
            .cost_per_k = costs.cost_per_k,
            .occupancy = costs.occupancy,
            .prologue_k = costs.prologue_k,
            .max_tail_split = costs.max_tail_split,
            .registers = costs.registers};
}

// A tile with the sizes of the kernel PREFIX<kernel>_<dtype>.
consteval Tile sized(std::string_view prefix, std::string_view dtype, Tile tile, const auto&... instances) {
    bool found = false;
    const auto search = [&](const auto& i) {
        std::string_view name = i.kernel;
        if (found || !name.starts_with(prefix) || !name.ends_with(dtype)) return;
        name.remove_prefix(prefix.size());
        name.remove_suffix(dtype.size() + 1);
        if (name != tile.kernel) return;
        set_sizes(tile, i);
        found = true;
    };
    (std::ranges::for_each(instances, search), ...);
    if (!found) throw "no kernel has this name";
    return tile;
}

consteval Tile matmul(std::string_view dtype, const char* kernel, const TileCosts& costs) {
    return sized("matmul_", dtype, with_costs(kernel, costs), shaders::matmul::matmul_shared_instances,
                 shaders::matmul::matmul_matrix_instances, shaders::matmul::matmul_pipelined_instances,
                 shaders::matmul_packed::matmul_packed_instances,
                 shaders::matmul_fragments::matmul_fragments_instances,
                 shaders::matmul_scaled::matmul_scaled_fragments_instances);
}

consteval Tile conv(std::string_view dtype, const char* kernel, const TileCosts& costs) {
    return sized("conv_", dtype, with_costs(kernel, costs), shaders::conv::conv_tiles_instances,
                 shaders::conv::conv_matrix_instances);
}

}  // namespace anymps::gemm::tile_rows
