#include "gemm/tile_table.h"

#include <algorithm>
#include <span>
#include <string>

#include "gemm/tile_rows.h"

namespace anymps::gemm {
namespace {

using namespace tile_rows;

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
           (!tile.pipelined || p.vectorizable) && (!tile.in_place || p.n % 4 == 0);
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
    if (uses_shared_memory(device)) return kSubgroupGpu;
    const auto fits = [&](const Tile& tile) { return tile.workgroup >= device.subgroup_size; };
    const auto* const tile = std::ranges::find_if(kSubgroupSoftware, fits);
    return tile == std::end(kSubgroupSoftware) ? kSubgroupGpu : *tile;
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

}  // namespace anymps::gemm
