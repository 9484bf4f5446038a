// Rows of the GEMM tile tables: data alone. tile_table.cpp says when each table is asked.
#pragma once

#include "gemm/tile_sizes.h"

namespace anymps::gemm::tile_rows {

// Costs of all tiles are in the unit of the device profile's costs (vulkan/device_profile.h), as measured on
// the device that these are of; elsewhere they order the tiles by the same reasons: loads a result, idle
// compute units.

// CPU drivers: a workgroup is one subgroup of 8 lanes with 4 columns each.
inline constexpr Tile kSoftware[] = {
    {.kernel = "register", .m = 16, .n = 32, .workgroup = 8, .cost_per_k = 88},
    {.kernel = "register", .m = 8, .n = 32, .workgroup = 8, .cost_per_k = 56},
    {.kernel = "register", .m = 4, .n = 32, .workgroup = 8, .cost_per_k = 40},
};

// GPUs: shared memory. A result costs its multiplication and its share of the loads.
inline constexpr Tile kShared[] = {
    matmul("f32", "shared_128x128", {.cost_per_k = 24576}),
    matmul("f32", "shared_64x64", {.cost_per_k = 8192}),
    matmul("f32", "shared_32x32", {.cost_per_k = 3072}),
};

// Matrix units, at 4096 x 4096 x 4096.
inline constexpr Tile kMatrix16[] = {
    matmul("f16", "fragments_128x144", {.cost_per_k = 2070, .occupancy = 2}),
    matmul("f16", "fragments_128x128", {.cost_per_k = 1910, .occupancy = 2, .max_tail_split = 8}),
    matmul("f16", "pipelined_128x192", {.cost_per_k = 3300, .prologue_k = 64, .registers = 222}),
    matmul("f16", "matrix_128x128x32", {.cost_per_k = 2930, .occupancy = 2}),
    matmul("f16", "matrix_128x128x64", {.cost_per_k = 3240}),
    matmul("f16", "matrix_64x64x64", {.cost_per_k = 1160, .occupancy = 3}),
};
// CPU drivers take seconds to compile a matrix product: the smallest tiles, for tests.
inline constexpr Tile kMatrixSoftware[] = {
    matmul("f16", "fragments_32x64", {.cost_per_k = 5, .max_tail_split = 2}),
    matmul("f16", "pipelined_32x32", {.cost_per_k = 4}),
    matmul("f16", "matrix_32x32x16", {.cost_per_k = 3}),
};
inline constexpr Tile kMatrixBf16x3[] = {
    matmul("bf16x3", "matrix_128x128x16", {.cost_per_k = 18500}),
    matmul("bf16x3", "matrix_64x64x16", {.cost_per_k = 6300, .occupancy = 3}),
};
inline constexpr Tile kMatrixBf16x2[] = {
    matmul("bf16x2", "matrix_128x128x16", {.cost_per_k = 7400, .occupancy = 2}),
    matmul("bf16x2", "matrix_64x64x32", {.cost_per_k = 3000, .occupancy = 3}),
};
inline constexpr Tile kMatrixBf16x1[] = {
    matmul("bf16x1", "matrix_128x128x32", {.cost_per_k = 5200, .occupancy = 2}),
    matmul("bf16x1", "matrix_64x64x32", {.cost_per_k = 2400, .occupancy = 3}),
};

// Of halves that were cut before.
inline constexpr Tile kScaledF16x2[] = {
    matmul("f16x2", "scaled_fragments_128x64", {.cost_per_k = 2950, .occupancy = 2, .max_tail_split = 8}),
    matmul("f16x2", "packed_128x128x32", {.cost_per_k = 7470}),
    matmul("f16x2", "packed_64x64x32", {.cost_per_k = 2900, .occupancy = 2}),
};
inline constexpr Tile kScaledF16x1[] = {
    matmul("f16x1", "scaled_fragments_128x128", {.cost_per_k = 2250, .occupancy = 2, .max_tail_split = 8}),
    matmul("f16x1", "packed_128x128x32", {.cost_per_k = 2820, .occupancy = 2}),
    matmul("f16x1", "packed_64x64x32", {.cost_per_k = 1100, .occupancy = 3}),
};
inline constexpr Tile kScaledF16Software[] = {
    matmul("f16x2", "scaled_fragments_32x64", {.cost_per_k = 1, .max_tail_split = 2}),
    matmul("f16x2", "packed_32x32x32", {.cost_per_k = 1}),
};

// Convolutions, whose operands take more address arithmetic.
inline constexpr Tile kConv16[] = {
    conv("f16", "matrix_256x128x32", {.cost_per_k = 5440, .prologue_k = 600}),
    conv("f16", "matrix_128x128x32", {.cost_per_k = 2890, .occupancy = 2}),
    conv("f16", "matrix_64x128x32", {.cost_per_k = 2010, .occupancy = 3}),
    conv("f16", "matrix_64x64x32", {.cost_per_k = 1370, .occupancy = 4}),
};
inline constexpr Tile kConvBf16x2[] = {
    conv("bf16x2", "matrix_128x128x16", {.cost_per_k = 9000, .occupancy = 2}),
    conv("bf16x2", "matrix_64x128x16", {.cost_per_k = 5000, .occupancy = 2}),
    conv("bf16x2", "matrix_64x64x16", {.cost_per_k = 3000, .occupancy = 3}),
};

// Convolutions without shared memory, of four subgroups.
consteval Tile nosmem(const char* kernel, uint32_t m, uint32_t n, const TileCosts& costs) {
    Tile tile = with_costs(kernel, costs);
    set_sizes(tile, m, n, 128, 0);
    return tile;
}
inline constexpr Tile kConvNoSmem[] = {
    nosmem("nosmem_64x128", 64, 128, {.cost_per_k = 1084, .occupancy = 3}),
    nosmem("nosmem_128x64", 128, 64, {.cost_per_k = 1084, .occupancy = 3}),
};
consteval Tile resident(const char* kernel, const TileCosts& costs) {
    Tile tile = nosmem(kernel, 256, 128, costs);
    tile.whole_k = true;
    return tile;
}
inline constexpr Tile kConvResidentB64[] = {
    resident("resident_b64_256x128", {.cost_per_k = 4336, .occupancy = 3}),
};
inline constexpr Tile kConvResidentB128[] = {
    resident("resident_b128_256x128", {.cost_per_k = 4336, .occupancy = 3}),
};
inline constexpr Tile kConvNoSmemBf16x2[] = {
    nosmem("nosmem_bf16x2_64x128", 64, 128, {.cost_per_k = 2750, .occupancy = 3}),
};
inline constexpr Tile kConvNoSmemBf16x2LongK[] = {
    nosmem("nosmem_bf16x2_pipelined_64x128", 64, 128, {.cost_per_k = 2670, .occupancy = 2}),
};
inline constexpr Tile kConvResidentBBf16x2[] = {
    resident("resident_b64_bf16x2_256x128", {.cost_per_k = 11000, .occupancy = 3}),
};
inline constexpr uint64_t kLongSum = 512;

// Integers on GPUs, where speed matters less.
inline constexpr Tile kRegister[] = {
    {.kernel = "register", .m = 8, .n = 256, .workgroup = 64, .cost_per_k = 2048},
    {.kernel = "register", .m = 4, .n = 128, .workgroup = 32, .cost_per_k = 512},
};

// Few results: each is a subgroup's. Software drivers have a subgroup a workgroup, of the vectors' width.
constexpr Tile subgroup(uint32_t workgroup) {
    return {.kernel = "subgroup",
            .m = 1,
            .n = 1,
            .workgroup = workgroup,
            .cost_per_k = 1,
            .kind = TileKind::Subgroup};
}
inline constexpr Tile kSubgroupSoftware[] = {subgroup(8), subgroup(16), subgroup(32), subgroup(64)};
inline constexpr Tile kSubgroupGpu = subgroup(128);
// Few rows, and operands that follow one another along the columns.
inline constexpr Tile kVector[] = {
    {.kernel = "vector_1", .m = 1, .n = 16, .workgroup = 256, .cost_per_k = 1, .kind = TileKind::Vector},
    {.kernel = "vector_4", .m = 4, .n = 16, .workgroup = 256, .cost_per_k = 1, .kind = TileKind::Vector}};

}  // namespace anymps::gemm::tile_rows
