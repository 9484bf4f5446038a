// The rows of tile tables beside the kernels that they name.
#include <anymps/shaders/conv/conv.h>
#include <anymps/shaders/gemm/matmul.h>

#include <initializer_list>
#include <span>
#include <string_view>

#include "gemm/tile_rows.h"

namespace anymps::gemm {
namespace {

using namespace tile_rows;

// Threads of tiles in shared memory are whole subgroups of 32, one a warp tile, and share the factors'
// vec8 evenly: one that got none would leave its part of shared memory unwritten.
consteval bool fit_kernels(const auto& instances, std::string_view prefix,
                           std::initializer_list<std::span<const Tile>> tables) {
    for (const auto& i : instances) {
        const auto threads = i.tile_m / i.warp_m * (i.tile_n / i.warp_n) * 32;
        if (i.tile_m * i.tile_k % (8 * threads) != 0 || i.tile_n * i.tile_k % (8 * threads) != 0)
            return false;
        const std::string_view kernel = i.kernel.substr(0, i.kernel.rfind('_'));
        size_t found = 0;
        for (const std::span<const Tile> table : tables) {
            for (const Tile& tile : table) {
                if (!kernel.starts_with(prefix) || kernel.substr(prefix.size()) != tile.kernel) continue;
                if (tile.m != i.tile_m || tile.n != i.tile_n || tile.workgroup != threads) return false;
                ++found;
            }
        }
        if (found == 0) return false;
    }
    return true;
}
static_assert(fit_kernels(shaders::matmul::matmul_matrix_instances, "matmul_",
                          {kMatrix16, kMatrixSoftware, kMatrixBf16x1, kMatrixBf16x2, kMatrixBf16x3}));
static_assert(fit_kernels(shaders::conv::conv_tiles_instances, "conv_", {kConv16, kMatrixSoftware}));
static_assert(fit_kernels(shaders::conv::conv_matrix_instances, "conv_",
                          {kConvBf16x2, kMatrixBf16x1, kMatrixBf16x2, kMatrixBf16x3}));

}  // namespace
}  // namespace anymps::gemm
