// Rows of the GEMM tile tables: data alone. tile_table.cpp says when each table is asked, tile_check.cpp that
// rows fit their kernels.
#pragma once

#include "gemm/tiles.h"

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
    {.kernel = "shared_128x128", .m = 128, .n = 128, .workgroup = 256, .cost_per_k = 24576},
    {.kernel = "shared_64x64", .m = 64, .n = 64, .workgroup = 256, .cost_per_k = 8192},
    {.kernel = "shared_32x32", .m = 32, .n = 32, .workgroup = 64, .cost_per_k = 3072},
};

// Matrix units, at 4096 x 4096 x 4096.
inline constexpr Tile kMatrix16[] = {
    {.kernel = "fragments_128x144",
     .m = 128,
     .n = 144,
     .workgroup = 192,
     .cost_per_k = 2070,
     .occupancy = 2,
     .fragments = true,
     .panel = 48},
    {.kernel = "fragments_128x128",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 1910,
     .occupancy = 2,
     .shared_bytes = 18432,
     .fragments = true,
     .max_tail_split = 8},
    {.kernel = "pipelined_128x192",
     .m = 128,
     .n = 192,
     .workgroup = 256,
     .cost_per_k = 3300,
     .shared_bytes = 46080,
     .prologue_k = 64,
     .pipelined = true,
     .registers = 222},
    {.kernel = "matrix_128x128x32",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 2930,
     .occupancy = 2,
     .shared_bytes = 20480},
    {.kernel = "matrix_128x128x64",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 3240,
     .shared_bytes = 36864},
    {.kernel = "matrix_64x64x64",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 1160,
     .occupancy = 3,
     .shared_bytes = 18432},
};
// CPU drivers take seconds to compile a matrix product: the smallest tiles, for tests.
inline constexpr Tile kMatrixSoftware[] = {
    {.kernel = "fragments_32x64",
     .m = 32,
     .n = 64,
     .workgroup = 16,
     .cost_per_k = 5,
     .shared_bytes = 4608,
     .fragments = true,
     .max_tail_split = 2},
    {.kernel = "pipelined_32x32",
     .m = 32,
     .n = 32,
     .workgroup = 32,
     .cost_per_k = 4,
     .shared_bytes = 10240,
     .pipelined = true},
    {.kernel = "matrix_32x32x16", .m = 32, .n = 32, .workgroup = 64, .cost_per_k = 3, .shared_bytes = 5120},
};
inline constexpr Tile kMatrixBf16x3[] = {
    {.kernel = "matrix_128x128x16",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 18500,
     .shared_bytes = 36864},
    {.kernel = "matrix_64x64x16",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 6300,
     .occupancy = 3,
     .shared_bytes = 18432},
};
inline constexpr Tile kMatrixBf16x2[] = {
    {.kernel = "matrix_128x128x16",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 7400,
     .occupancy = 2,
     .shared_bytes = 24576},
    {.kernel = "matrix_64x64x32",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 3000,
     .occupancy = 3,
     .shared_bytes = 20480},
};
inline constexpr Tile kMatrixBf16x1[] = {
    {.kernel = "matrix_128x128x32",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 5200,
     .occupancy = 2,
     .shared_bytes = 20480},
    {.kernel = "matrix_64x64x32",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 2400,
     .occupancy = 3,
     .shared_bytes = 10240},
};

// Of halves that were cut before.
inline constexpr Tile kScaledF16x2[] = {
    {.kernel = "scaled_fragments_128x64",
     .m = 128,
     .n = 64,
     .workgroup = 256,
     .cost_per_k = 2950,
     .occupancy = 2,
     .shared_bytes = 18432,
     .fragments = true,
     .max_tail_split = 8},
    {.kernel = "packed_128x128x32",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 7470,
     .shared_bytes = 36864},
    {.kernel = "packed_64x64x32",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 2900,
     .occupancy = 2,
     .shared_bytes = 18432},
};
inline constexpr Tile kScaledF16x1[] = {
    {.kernel = "scaled_fragments_128x128",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 2250,
     .occupancy = 2,
     .shared_bytes = 18432,
     .fragments = true,
     .max_tail_split = 8},
    {.kernel = "packed_128x128x32",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 2820,
     .occupancy = 2,
     .shared_bytes = 20480},
    {.kernel = "packed_64x64x32",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 1100,
     .occupancy = 3,
     .shared_bytes = 10240},
};
inline constexpr Tile kScaledF16Software[] = {
    {.kernel = "scaled_fragments_32x64",
     .m = 32,
     .n = 64,
     .workgroup = 16,
     .cost_per_k = 1,
     .shared_bytes = 4608,
     .fragments = true,
     .max_tail_split = 2},
    {.kernel = "packed_32x32x32", .m = 32, .n = 32, .workgroup = 64, .cost_per_k = 1, .shared_bytes = 9216},
};

// Convolutions, whose factors take more address arithmetic.
inline constexpr Tile kConv16[] = {
    {.kernel = "matrix_256x128x32",
     .m = 256,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 5440,
     .shared_bytes = 30720,
     .prologue_k = 600},
    {.kernel = "matrix_128x128x32",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 2890,
     .occupancy = 2,
     .shared_bytes = 20480},
    {.kernel = "matrix_64x128x32",
     .m = 64,
     .n = 128,
     .workgroup = 128,
     .cost_per_k = 2010,
     .occupancy = 3,
     .shared_bytes = 15360},
    {.kernel = "matrix_64x64x32",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 1370,
     .occupancy = 4,
     .shared_bytes = 10240},
};
// Without shared memory.
inline constexpr Tile kConvNoSmem[] = {
    {.kernel = "nosmem_64x128", .m = 64, .n = 128, .workgroup = 128, .cost_per_k = 1084, .occupancy = 3},
    {.kernel = "nosmem_128x64", .m = 128, .n = 64, .workgroup = 128, .cost_per_k = 1084, .occupancy = 3},
};
inline constexpr Tile kConvResidentB64[] = {{.kernel = "resident_b64_256x128",
                                             .m = 256,
                                             .n = 128,
                                             .workgroup = 128,
                                             .cost_per_k = 4336,
                                             .occupancy = 3}};
inline constexpr Tile kConvResidentB128[] = {{.kernel = "resident_b128_256x128",
                                              .m = 256,
                                              .n = 128,
                                              .workgroup = 128,
                                              .cost_per_k = 4336,
                                              .occupancy = 3}};
inline constexpr Tile kConvNoSmemBf16x2[] = {{.kernel = "nosmem_bf16x2_64x128",
                                              .m = 64,
                                              .n = 128,
                                              .workgroup = 128,
                                              .cost_per_k = 2750,
                                              .occupancy = 3}};
inline constexpr Tile kConvNoSmemBf16x2LongK[] = {{.kernel = "nosmem_bf16x2_pipelined_64x128",
                                                   .m = 64,
                                                   .n = 128,
                                                   .workgroup = 128,
                                                   .cost_per_k = 2670,
                                                   .occupancy = 2}};
inline constexpr Tile kConvResidentBBf16x2[] = {{.kernel = "resident_b64_bf16x2_256x128",
                                                 .m = 256,
                                                 .n = 128,
                                                 .workgroup = 128,
                                                 .cost_per_k = 11000,
                                                 .occupancy = 3}};
inline constexpr uint64_t kLongSum = 512;
inline constexpr Tile kConvBf16x2[] = {
    {.kernel = "matrix_128x128x16",
     .m = 128,
     .n = 128,
     .workgroup = 256,
     .cost_per_k = 9000,
     .occupancy = 2,
     .shared_bytes = 24576},
    {.kernel = "matrix_64x128x16",
     .m = 64,
     .n = 128,
     .workgroup = 128,
     .cost_per_k = 5000,
     .occupancy = 2,
     .shared_bytes = 18432},
    {.kernel = "matrix_64x64x16",
     .m = 64,
     .n = 64,
     .workgroup = 128,
     .cost_per_k = 3000,
     .occupancy = 3,
     .shared_bytes = 12288},
};

// Integers on GPUs, where speed matters less.
inline constexpr Tile kRegister[] = {
    {.kernel = "register", .m = 8, .n = 256, .workgroup = 64, .cost_per_k = 2048},
    {.kernel = "register", .m = 4, .n = 128, .workgroup = 32, .cost_per_k = 512},
};

// Few results: each is a subgroup's.
inline constexpr Tile kSubgroupSoftware{
    .kernel = "subgroup", .m = 1, .n = 1, .workgroup = 8, .cost_per_k = 1, .kind = TileKind::Subgroup};
inline constexpr Tile kSubgroupGpu{
    .kernel = "subgroup", .m = 1, .n = 1, .workgroup = 128, .cost_per_k = 1, .kind = TileKind::Subgroup};
// Few rows, and operands that follow one another along the columns.
inline constexpr Tile kVector[] = {
    {.kernel = "vector_1", .m = 1, .n = 16, .workgroup = 256, .cost_per_k = 1, .kind = TileKind::Vector},
    {.kernel = "vector_4", .m = 4, .n = 16, .workgroup = 256, .cost_per_k = 1, .kind = TileKind::Vector}};

}  // namespace anymps::gemm::tile_rows
