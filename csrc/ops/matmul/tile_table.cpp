#include "ops/matmul/tile_table.h"

#include <anymps/shaders/conv.h>
#include <anymps/shaders/matmul.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace anymps::ops {
namespace {

// Costs of all tiles are in the unit of the device profile's costs (vulkan/device_profile.h), as measured on
// the device that these are of; elsewhere they order the tiles by the same reasons: loads a result, idle
// compute units.

// CPU drivers: a workgroup is one subgroup of 8 lanes with 4 columns each.
constexpr Tile kSoftware[] = {
    {.kernel = "register", .m = 16, .n = 32, .workgroup = 8, .cost_per_k = 88},
    {.kernel = "register", .m = 8, .n = 32, .workgroup = 8, .cost_per_k = 56},
    {.kernel = "register", .m = 4, .n = 32, .workgroup = 8, .cost_per_k = 40},
};

// GPUs: shared memory. A result costs its multiplication and its share of the loads.
constexpr Tile kShared[] = {
    {.kernel = "shared_128x128", .m = 128, .n = 128, .workgroup = 256, .cost_per_k = 24576},
    {.kernel = "shared_64x64", .m = 64, .n = 64, .workgroup = 256, .cost_per_k = 8192},
    {.kernel = "shared_32x32", .m = 32, .n = 32, .workgroup = 64, .cost_per_k = 3072},
};

// Matrix units, at 4096 x 4096 x 4096.
constexpr Tile kMatrix16[] = {
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
constexpr Tile kMatrixSoftware[] = {
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
constexpr Tile kMatrixBf16x3[] = {
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
constexpr Tile kMatrixBf16x2[] = {
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
constexpr Tile kMatrixBf16x1[] = {
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
constexpr Tile kScaledF16x2[] = {
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
constexpr Tile kScaledF16x1[] = {
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
constexpr Tile kScaledF16Software[] = {
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
constexpr Tile kConv16[] = {
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
constexpr Tile kConvNoSmem[] = {
    {.kernel = "nosmem_64x128", .m = 64, .n = 128, .workgroup = 128, .cost_per_k = 1084, .occupancy = 3},
    {.kernel = "nosmem_128x64", .m = 128, .n = 64, .workgroup = 128, .cost_per_k = 1084, .occupancy = 3},
};
constexpr Tile kConvResidentB64[] = {{.kernel = "resident_b64_256x128",
                                      .m = 256,
                                      .n = 128,
                                      .workgroup = 128,
                                      .cost_per_k = 4336,
                                      .occupancy = 3}};
constexpr Tile kConvResidentB128[] = {{.kernel = "resident_b128_256x128",
                                       .m = 256,
                                       .n = 128,
                                       .workgroup = 128,
                                       .cost_per_k = 4336,
                                       .occupancy = 3}};
constexpr Tile kConvNoSmemBf16x2[] = {{.kernel = "nosmem_bf16x2_64x128",
                                       .m = 64,
                                       .n = 128,
                                       .workgroup = 128,
                                       .cost_per_k = 2750,
                                       .occupancy = 3}};
constexpr Tile kConvNoSmemBf16x2LongK[] = {{.kernel = "nosmem_bf16x2_pipelined_64x128",
                                            .m = 64,
                                            .n = 128,
                                            .workgroup = 128,
                                            .cost_per_k = 2670,
                                            .occupancy = 2}};
constexpr Tile kConvResidentBBf16x2[] = {{.kernel = "resident_b64_bf16x2_256x128",
                                          .m = 256,
                                          .n = 128,
                                          .workgroup = 128,
                                          .cost_per_k = 11000,
                                          .occupancy = 3}};
constexpr uint64_t kLongSum = 512;
constexpr Tile kConvBf16x2[] = {
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

// Integers on GPUs, where speed matters less.
constexpr Tile kRegister[] = {
    {.kernel = "register", .m = 8, .n = 256, .workgroup = 64, .cost_per_k = 2048},
    {.kernel = "register", .m = 4, .n = 128, .workgroup = 32, .cost_per_k = 512},
};

// Few results: each is a subgroup's.
constexpr Tile kSubgroupSoftware{
    .kernel = "subgroup", .m = 1, .n = 1, .workgroup = 8, .cost_per_k = 1, .kind = TileKind::Subgroup};
constexpr Tile kSubgroupGpu{
    .kernel = "subgroup", .m = 1, .n = 1, .workgroup = 128, .cost_per_k = 1, .kind = TileKind::Subgroup};
// Few rows, and operands that follow one another along the columns.
constexpr Tile kVector[] = {
    {.kernel = "vector_1", .m = 1, .n = 16, .workgroup = 256, .cost_per_k = 1, .kind = TileKind::Vector},
    {.kernel = "vector_4", .m = 4, .n = 16, .workgroup = 256, .cost_per_k = 1, .kind = TileKind::Vector}};

std::span<const Tile> tiles_of(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    if (!uses_shared_memory(device)) return kSoftware;
    // The tiles of fragments come first.
    const auto usable = [&](std::span<const Tile> tiles) {
        const auto first = p.may_pack ? tiles.begin() : std::ranges::find(tiles, false, &Tile::fragments);
        return std::span<const Tile>(first, tiles.end());
    };
    switch (p.arithmetic) {
        case Arithmetic::F16:
        case Arithmetic::BF16:
            if (p.algo == ConvAlgo::NoSmemBf16x2 && p.k == 64) return kConvResidentBBf16x2;
            if (p.algo == ConvAlgo::NoSmemBf16x2 && p.k >= kLongSum) return kConvNoSmemBf16x2LongK;
            if (p.algo == ConvAlgo::NoSmemBf16x2) return kConvNoSmemBf16x2;
            if (p.algo == ConvAlgo::NoSmemFlat) {
                if (p.k == 64) return kConvResidentB64;
                if (p.k == 128) return kConvResidentB128;
            }
            if (p.algo != ConvAlgo::Staged) return kConvNoSmem;
            if (p.convolution && !device.is_software) return kConv16;
            return device.is_software ? usable(kMatrixSoftware) : usable(kMatrix16);
        case Arithmetic::BF16x1:
            return kMatrixBf16x1;
        case Arithmetic::BF16x2:
            if (p.convolution) return kConvBf16x2;
            return kMatrixBf16x2;
        case Arithmetic::BF16x3:
            return kMatrixBf16x3;
        case Arithmetic::F16x1:
            return device.is_software ? usable(kScaledF16Software) : usable(kScaledF16x1);
        case Arithmetic::F16x2:
            return device.is_software ? usable(kScaledF16Software) : usable(kScaledF16x2);
        case Arithmetic::Simt:
            break;
    }
    return p.floating ? std::span<const Tile>(kShared) : kRegister;
}

std::string kernel_name(const GemmProblem& p, const Tile& tile) {
    const char* dtype = suffix(p.arithmetic);
    return std::string(p.convolution ? "conv_" : "matmul_") + tile.kernel + "_" + (dtype ? dtype : "f32");
}

bool can_hold(const vulkan::DeviceInfo& device, const GemmProblem& p, const Tile& tile) {
    return tile.shared_bytes <= device.shared_memory_bytes && tile.registers <= device.profile->registers &&
           (!tile.pipelined || p.vectorizable);
}

}  // namespace

std::vector<const Tile*> usable_tiles(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    std::vector<const Tile*> all, usable;
    for (const Tile& tile : tiles_of(device, p)) {
        if (!can_hold(device, p, tile)) continue;
        all.push_back(&tile);
        if (!device.profile->excludes(kernel_name(p, tile))) usable.push_back(&tile);
    }
    return usable.empty() ? all : usable;
}

const Tile& subgroup_tile(const vulkan::DeviceInfo& device) {
    return uses_shared_memory(device) ? kSubgroupGpu : kSubgroupSoftware;
}

const Tile& vector_tile(uint64_t rows) {
    return kVector[rows > 1];
}

const Tile& fallback_tile(const vulkan::DeviceInfo& device, Arithmetic arithmetic, const Tile& scaled) {
    const bool wide = scaled.m == 128;
    switch (arithmetic) {
        case Arithmetic::BF16x1:
            return kMatrixBf16x1[!wide];
        case Arithmetic::BF16x2:
            return kMatrixBf16x2[!wide];
        case Arithmetic::BF16x3:
            return kMatrixBf16x3[!wide];
        default:
            return device.is_software ? kShared[2] : kShared[!wide];
    }
}

}  // namespace anymps::ops
