#include "ops/matmul/tiles.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

namespace anymps::ops {
namespace {

// CPU drivers: a workgroup is one subgroup of 8 lanes with 4 columns each. Costs measured on lavapipe.
constexpr Tile kSoftware[] = {
    {"register", 16, 32, 8, 88},
    {"register", 8, 32, 8, 56},
    {"register", 4, 32, 8, 40},
};

// GPUs: shared memory. A result costs its multiplication and its share of the loads.
constexpr Tile kShared[] = {
    {"shared_128x128", 128, 128, 256, 24576},
    {"shared_64x64", 64, 64, 256, 8192},
    {"shared_32x32", 32, 32, 64, 3072},
};

// Integers on GPUs, where speed matters less.
constexpr Tile kRegister[] = {
    {"register", 8, 256, 64, 2048},
    {"register", 4, 128, 32, 512},
};

// Few results: each is a subgroup's.
constexpr Tile kSubgroupSoftware{"subgroup", 1, 1, 8, 1};
constexpr Tile kSubgroupGpu{"subgroup", 1, 1, 128, 1};
constexpr uint64_t kFewRows = 4;

constexpr uint64_t kWorkspaceElements = 16ull << 20;

uint64_t ceil_div(uint64_t a, uint64_t b) {
    return (a + b - 1) / b;
}

uint64_t groups_of(const Tile& tile, uint64_t batch, uint64_t m, uint64_t n) {
    return batch * ceil_div(m, tile.m) * ceil_div(n, tile.n);
}

std::span<const Tile> tiles_of(const vulkan::DeviceInfo& device, bool floating) {
    if (!uses_shared_memory(device)) return kSoftware;
    if (floating) return kShared;
    return kRegister;
}

// Workgroups that run at once; Vulkan does not tell the number of cores.
uint64_t concurrent_groups(const vulkan::DeviceInfo& device) {
    return device.is_software ? 2 : 128;
}

Plan cheapest_tile(const vulkan::DeviceInfo& device, const Problem& p) {
    if (p.floating && p.k_contiguous && std::min(p.m, p.n) <= kFewRows) {
        return {uses_shared_memory(device) ? &kSubgroupGpu : &kSubgroupSoftware, false, 1, 0};
    }
    Plan best{};
    uint64_t best_cost = UINT64_MAX;
    for (const Tile& tile : tiles_of(device, p.floating)) {
        for (const bool swapped : {false, true}) {
            if (swapped && !p.may_swap) continue;
            const uint64_t groups = groups_of(tile, p.batch, swapped ? p.n : p.m, swapped ? p.m : p.n);
            const uint64_t cost =
                std::max(groups, concurrent_groups(device)) * tile.cost;  // idle cores are paid for
            if (cost < best_cost) {
                best_cost = cost;
                best = {&tile, swapped, 1, 0};
            }
        }
    }
    return best;
}

}  // namespace

bool uses_shared_memory(const vulkan::DeviceInfo& device) {
    static const char* chosen = std::getenv("ANYMPS_TILES");
    return !device.is_software || (chosen != nullptr && std::string_view(chosen) == "gpu");
}

uint64_t plan_groups(const vulkan::DeviceInfo& device, const Plan& plan, uint64_t batch, uint64_t m,
                     uint64_t n) {
    const uint64_t tiles = groups_of(*plan.tile, batch, m, n) * plan.parts;
    const bool subgroups = std::string_view(plan.tile->kernel) == "subgroup";
    return subgroups ? ceil_div(tiles, plan.tile->workgroup / device.subgroup_size) : tiles;
}

Plan choose_plan(const vulkan::DeviceInfo& device, const Problem& p) {
    const uint64_t enough = 2 * concurrent_groups(device);
    const uint64_t shortest_part = device.is_software ? 1024 : 256;  // worth a workgroup of its own
    Plan best = cheapest_tile(device, p);
    const uint64_t groups =
        groups_of(*best.tile, p.batch, best.swapped ? p.n : p.m, best.swapped ? p.m : p.n);
    uint64_t parts = ceil_div(p.k, p.longest_part);
    if (groups < enough) parts = std::max(parts, std::min(enough / groups, p.k / shortest_part));
    parts = std::max<uint64_t>(1, std::min(parts, kWorkspaceElements / (p.batch * p.m * p.n)));
    const uint64_t part = std::max<uint64_t>(16, ceil_div(ceil_div(p.k, parts), 16) * 16);
    best.part_k = static_cast<uint32_t>(part);
    best.parts = static_cast<uint32_t>(std::max<uint64_t>(1, ceil_div(p.k, part)));
    return best;
}

}  // namespace anymps::ops
