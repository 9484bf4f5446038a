#include "ops/matmul/tiles.h"

#include <anymps/shaders/conv.h>
#include <anymps/shaders/matmul.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "kernels/team.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;

// CPU drivers: a workgroup is one subgroup of 8 lanes with 4 columns each. Costs measured on lavapipe.
constexpr Tile kSoftware[] = {
    {"register", 16, 32, 8, 88},
    {"register", 8, 32, 8, 56},
    {"register", 4, 32, 8, 40},
};

constexpr uint64_t kSmallSoftware = 1ull << 22;  // products, which take 1 ms

// GPUs: shared memory. A result costs its multiplication and its share of the loads.
constexpr Tile kShared[] = {
    {"shared_128x128", 128, 128, 256, 24576},
    {"shared_64x64", 64, 64, 256, 8192},
    {"shared_32x32", 32, 32, 64, 3072},
};

// Matrix units. Costs in the unit of kShared, from the rates measured on an H200 at 4096 x 4096 x 4096; on
// others they order the tiles by the same reasons (loads a result, idle cores), which has not been measured.
constexpr Tile kMatrix16[] = {
    {"fragments_128x144", 128, 144, 192, 2070, 2, 0, true, 0, 1, 48},
    {"fragments_128x128", 128, 128, 256, 1910, 2, 18432, true, 0, 8},
    {"ahead_128x192", 128, 192, 256, 3300, 1, 46080, false, 64, 1, 64, true},
    {"matrix_128x128x32", 128, 128, 256, 2930, 2, 20480},
    {"matrix_128x128x64", 128, 128, 256, 3240, 1, 36864},
    {"matrix_64x64x64", 64, 64, 128, 1160, 3, 18432},
};
// CPU drivers take seconds to compile a matrix product: the smallest tiles, for tests.
constexpr Tile kMatrixSoftware[] = {
    {"fragments_32x64", 32, 64, 16, 5, 1, 4608, true, 0, 2},
    {"ahead_32x32", 32, 32, 32, 4, 1, 10240, false, 0, 1, 64, true},
    {"matrix_32x32x16", 32, 32, 64, 3, 1, 5120},
};
constexpr Tile kMatrixParts3[] = {
    {"matrix_128x128x16", 128, 128, 256, 18500, 1, 36864},
    {"matrix_64x64x16", 64, 64, 128, 6300, 3, 18432},
};
constexpr Tile kMatrixParts2[] = {
    {"matrix_128x128x16", 128, 128, 256, 7400, 2, 24576},
    {"matrix_64x64x32", 64, 64, 128, 3000, 3, 20480},
};
constexpr Tile kMatrixParts1[] = {
    {"matrix_128x128x32", 128, 128, 256, 5200, 2, 20480},
    {"matrix_64x64x32", 64, 64, 128, 2400, 3, 10240},
};

// Of halves that were cut before.
constexpr Tile kHalves2[] = {
    {"halves_128x64", 128, 64, 256, 2950, 2, 18432, true, 0, 8},
    {"packed_128x128x32", 128, 128, 256, 7470, 1, 36864},
    {"packed_64x64x32", 64, 64, 128, 2900, 2, 18432},
};
constexpr Tile kHalves1[] = {
    {"halves_128x128", 128, 128, 256, 2250, 2, 18432, true, 0, 8},
    {"packed_128x128x32", 128, 128, 256, 2820, 2, 20480},
    {"packed_64x64x32", 64, 64, 128, 1100, 3, 10240},
};
constexpr Tile kHalvesSoftware[] = {
    {"halves_32x64", 32, 64, 16, 1, 1, 4608, true, 0, 2},
    {"packed_32x32x32", 32, 32, 64, 1, 1, 9216},
};

// Convolutions, whose factors take more address arithmetic. Costs of 16 bits are from rates measured on an
// H200.
constexpr Tile kConv16[] = {
    {"matrix_256x128x32", 256, 128, 256, 5440, 1, 30720, false, 600},
    {"matrix_128x128x32", 128, 128, 256, 2890, 2, 20480},
    {"matrix_64x128x32", 64, 128, 128, 2010, 3, 15360},
    {"matrix_64x64x32", 64, 64, 128, 1370, 4, 10240},
};
// Without shared memory.
constexpr Tile kConvDirect[] = {
    {"direct_64x128", 64, 128, 128, 1084, 3},
    {"direct_128x64", 128, 64, 128, 1084, 3},
};
constexpr Tile kConvPanels64[] = {{"panels64_256x128", 256, 128, 128, 4336, 3}};
constexpr Tile kConvPanels128[] = {{"panels128_256x128", 256, 128, 128, 4336, 3}};
constexpr Tile kConvPairs[] = {{"pairs_64x128", 64, 128, 128, 2750, 3}};
constexpr Tile kConvPairsOfLongSums[] = {{"pairs_ahead_64x128", 64, 128, 128, 2670, 2}};
constexpr Tile kConvPairPanels64[] = {{"pair_panels64_256x128", 256, 128, 128, 11000, 3}};
constexpr uint64_t kLongSum = 512;
constexpr Tile kConvParts2[] = {
    {"matrix_128x128x16", 128, 128, 256, 9000, 2, 24576},
    {"matrix_64x128x16", 64, 128, 128, 5000, 2, 18432},
    {"matrix_64x64x16", 64, 64, 128, 3000, 3, 12288},
};

// Threads of tiles in shared memory are whole subgroups of 32, one a warp tile, and share the factors'
// granules of eight elements evenly: one that got none would leave its part of shared memory unwritten.
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
                          {kMatrix16, kMatrixSoftware, kMatrixParts1, kMatrixParts2, kMatrixParts3}));
static_assert(fit_kernels(shaders::conv::conv_tiles_instances, "conv_", {kConv16, kMatrixSoftware}));
static_assert(fit_kernels(shaders::conv::conv_matrix_instances, "conv_",
                          {kConvParts2, kMatrixParts1, kMatrixParts2, kMatrixParts3}));

// Integers on GPUs, where speed matters less.
constexpr Tile kRegister[] = {
    {"register", 8, 256, 64, 2048},
    {"register", 4, 128, 32, 512},
};

// Few results: each is a subgroup's.
constexpr Tile kSubgroupSoftware{"subgroup", 1, 1, 8, 1};
constexpr Tile kSubgroupGpu{"subgroup", 1, 1, 128, 1};
// Few rows, and factors that follow one another along the columns.
constexpr Tile kVector[] = {{"vector_1", 1, 16, 256, 1}, {"vector_4", 4, 16, 256, 1}};
constexpr uint64_t kFewRows = 4;

constexpr uint64_t kWorkspaceElements = 16ull << 20;

uint64_t groups_of(const Tile& tile, uint64_t batch, uint64_t m, uint64_t n) {
    return batch * ceil_div(m, tile.m) * ceil_div(n, tile.n);
}

std::span<const Tile> tiles_of(const vulkan::DeviceInfo& device, const Problem& p) {
    if (!uses_shared_memory(device)) return kSoftware;
    // The tiles of fragments come first.
    const auto usable = [&](std::span<const Tile> tiles) {
        const auto first = p.may_pack ? tiles.begin() : std::ranges::find(tiles, false, &Tile::fragments);
        return std::span<const Tile>(first, tiles.end());
    };
    switch (p.arithmetic) {
        case Arithmetic::F16:
        case Arithmetic::BF16:
            if (p.direct == Direct::Pairs && p.k == 64) return kConvPairPanels64;
            if (p.direct == Direct::Pairs && p.k >= kLongSum) return kConvPairsOfLongSums;
            if (p.direct == Direct::Pairs) return kConvPairs;
            if (p.direct == Direct::Positions) {
                if (p.k == 64) return kConvPanels64;
                if (p.k == 128) return kConvPanels128;
            }
            if (p.direct != Direct::None) return kConvDirect;
            // Of the largest, AMD's compiler spills registers.
            if (p.convolution && !device.is_software)
                return std::span<const Tile>(kConv16).subspan(device.vendor_id == vulkan::kAmd ? 1 : 0);
            return device.is_software ? usable(kMatrixSoftware) : usable(kMatrix16);
        case Arithmetic::F32x1:
            return kMatrixParts1;
        case Arithmetic::F32x2:
            if (p.convolution) return kConvParts2;
            return kMatrixParts2;
        case Arithmetic::F32x3:
            return kMatrixParts3;
        case Arithmetic::Halves1:
            return device.is_software ? usable(kHalvesSoftware) : usable(kHalves1);
        case Arithmetic::Halves2:
            return device.is_software ? usable(kHalvesSoftware) : usable(kHalves2);
        case Arithmetic::Lanes:
            break;
    }
    if (!p.floating) return kRegister;
    // Before Xe2 a lane of Intel's has half the registers. By its compiler's estimate a result of the largest
    // takes 527 cycles there, with spills, and 317 with the next; not measured on such a GPU.
    const bool spills = device.vendor_id == vulkan::kIntel && device.min_subgroup_size < 16 && !p.convolution;
    return std::span<const Tile>(kShared).subspan(spills ? 1 : 0);
}

// What cutting k costs beside the products, in the unit of the tiles' costs.
struct CutCosts {
    uint64_t start;          // of a workgroup before its first product and after its last, in k
    uint64_t join;           // the dispatch that adds the parts
    uint64_t shortest_part;  // worth a workgroup of its own
    uint64_t most_parts;
    uint64_t most_of_convolutions;  // whose gradients of weights are few sums of many terms
    uint64_t results_a_unit;        // of parts, written and read again
    uint64_t pack;                  // the dispatch that stores factors as fragments
    uint64_t packed_a_unit;         // elements of them
};
// Measured on an H200, where a unit is 5.7 ps.
constexpr CutCosts kCutGpu{128, 700000, 256, 32, 264, 2, 500000, 5};
constexpr CutCosts kCutSoftware{0, 30000, 1024, 4, 4, 1, 0, 64};

const CutCosts& cut_costs(const vulkan::DeviceInfo& device) {
    return device.is_software ? kCutSoftware : kCutGpu;
}

// The time of so many workgroups for each k: full cores first; one that is not full hides less of the
// latencies.
uint64_t modelled_time(const vulkan::DeviceInfo& device, const Tile& tile, uint64_t groups) {
    const uint64_t wave = device.cores() * tile.resident;
    const uint64_t last = ceil_div(groups % wave, device.cores());
    const uint64_t idle = last != 0 && last < tile.resident ? tile.cost / 2 : 0;
    return (groups / wave * tile.resident + last) * tile.cost + idle;
}

void cut_k(Plan& plan, const Problem& p, uint64_t parts) {
    parts = std::max<uint64_t>(1, std::min(parts, kWorkspaceElements / (p.batch * p.m * p.n)));
    const bool sixteen = p.arithmetic == Arithmetic::F16 || p.arithmetic == Arithmetic::BF16;
    const bool halves = is_halves(p.arithmetic) || (p.convolution && sixteen);
    const uint64_t step = plan.tile->fragments || plan.tile->ahead ? 64 : halves ? 32 : 16;
    const uint64_t part = std::max<uint64_t>(step, ceil_div(ceil_div(p.k, parts), step) * step);
    plan.part_k = static_cast<uint32_t>(part);
    plan.parts = static_cast<uint32_t>(std::max<uint64_t>(1, ceil_div(p.k, part)));
}

// Lets workgroups share the tiles of the last wave where that leaves half of it idle or more: none then has
// more than a part of a tile. Pieces have as many k each, whole steps of fragments.
void share_last(const vulkan::DeviceInfo& device, Plan& plan, const Problem& p, uint64_t groups) {
    const uint64_t wave = device.cores() * plan.tile->resident, last = groups % wave;
    uint32_t ways = 1;
    while (last != 0 && 2 * ways <= plan.tile->most_ways && last * 2 * ways <= wave) ways *= 2;
    constexpr uint64_t kStep = 64;
    const bool even = plan.part_k * uint64_t{plan.parts} == ceil_div(p.k, kStep) * kStep;
    while (ways > 1 && (!even || plan.part_k % (kStep * ways) != 0)) ways /= 2;
    plan.ways = ways;
    plan.whole = static_cast<uint32_t>(groups - last);
}

uint64_t least_parts(const Problem& p) {
    return std::max<uint64_t>(1, ceil_div(p.k, p.longest_part));
}

bool can_use(const vulkan::DeviceInfo& device, const Problem& p, const Tile& tile) {
    if (tile.shared_bytes > device.shared_memory_bytes) return false;
    // Its threads have 222 registers, of which others' have fewer.
    const bool enough = device.vendor_id == vulkan::kNvidia || device.is_software;
    return !tile.ahead || (p.whole_words && enough);
}

// Tile and number of parts are chosen together: few results fill the cores with large tiles of short parts.
Plan cheapest_plan(const vulkan::DeviceInfo& device, const Problem& p) {
    const CutCosts& costs = cut_costs(device);
    const uint64_t least = least_parts(p);
    const uint64_t limit = p.convolution ? costs.most_of_convolutions : costs.most_parts;
    const uint64_t most = p.may_cut ? std::max(least, std::min(limit, p.k / costs.shortest_part)) : least;
    Plan best{};
    uint64_t best_time = UINT64_MAX;
    std::span<const Tile> tiles = tiles_of(device, p);
    // Compiling a larger tile takes longer than it saves, and one kernel serves all small products.
    if (is_small(device, p.batch * p.m * p.n * p.k)) tiles = tiles.last(1);
    for (const Tile& tile : tiles) {
        if (!can_use(device, p, tile)) continue;
        for (const bool swapped : {false, true}) {
            if (swapped && !p.may_swap) continue;
            const uint64_t groups = groups_of(tile, p.batch, swapped ? p.n : p.m, swapped ? p.m : p.n);
            // Of many parts one more or less matters little.
            for (uint64_t parts = least; parts <= most; parts += std::max<uint64_t>(1, parts / 16)) {
                Plan plan{&tile, swapped, 1, 0, p.arithmetic};
                cut_k(plan, p, parts);
                share_last(device, plan, p, groups * plan.parts);
                const uint64_t start = costs.start + tile.start;
                const uint64_t whole = plan.ways > 1 ? plan.whole : groups * plan.parts;
                uint64_t time =
                    modelled_time(device, tile, whole) * (std::min<uint64_t>(plan.part_k, p.k) + start);
                if (plan.ways > 1)
                    time += modelled_time(device, tile, (groups * plan.parts - whole) * plan.ways) *
                            (plan.part_k / plan.ways + start);
                if (plan.parts > 1)
                    time += costs.join + plan.parts * p.batch * p.m * p.n / costs.results_a_unit;
                if (tile.fragments && !is_halves(p.arithmetic))
                    time += costs.pack + p.batch * (p.m + p.n) * p.k / costs.packed_a_unit;
                if (time < best_time) {
                    best_time = time;
                    best = plan;
                }
            }
        }
    }
    return best;
}

// Few rows: k is cut where the results of one part do not fill the device.
Plan plan_of_few(const vulkan::DeviceInfo& device, const Problem& p, const Tile& tile,
                 uint64_t shortest_part) {
    const uint64_t groups = groups_of(tile, p.batch, p.m, p.n), enough = 2 * device.cores();
    uint64_t parts = least_parts(p);
    if (groups < enough) parts = std::max(parts, std::min(enough / groups, p.k / shortest_part));
    Plan plan{&tile, false, 1, 0};
    cut_k(plan, p, parts);
    return plan;
}

}  // namespace

bool uses_shared_memory(const vulkan::DeviceInfo& device) {
    static const char* chosen = std::getenv("ANYMPS_TILES");
    return !device.is_software || (chosen != nullptr && std::string_view(chosen) == "gpu");
}

bool is_small(const vulkan::DeviceInfo& device, uint64_t products) {
    return !uses_shared_memory(device) && products <= kSmallSoftware;
}

uint32_t matrix_subgroup(const vulkan::DeviceInfo& device) {
    const bool has_32 =
        device.subgroup_size_control && device.min_subgroup_size <= 32 && device.max_subgroup_size >= 32;
    return has_32 ? 32 : device.subgroup_size;
}

Arithmetic choose_arithmetic(const vulkan::DeviceInfo& device, bool f16, bool bf16, bool f32,
                             uint32_t f32_parts) {
    if (!uses_shared_memory(device) || matrix_subgroup(device) > 32) return Arithmetic::Lanes;
    if (f16 && device.cooperative_matrix) return Arithmetic::F16;
    if (!device.cooperative_matrix || !device.cooperative_matrix_bfloat16) return Arithmetic::Lanes;
    if (bf16) return Arithmetic::BF16;
    if (!f32) return Arithmetic::Lanes;
    constexpr Arithmetic kParts[] = {Arithmetic::F32x1, Arithmetic::F32x2, Arithmetic::F32x3};
    return kParts[f32_parts - 1];
}

bool multiplies_halves(const vulkan::DeviceInfo& device) {
    return uses_shared_memory(device) && matrix_subgroup(device) <= 32 && device.cooperative_matrix;
}

Plan plan_without_halves(const vulkan::DeviceInfo& device, const Plan& plan, uint32_t f32_parts) {
    Plan other = plan;
    other.trial = 0;
    other.ways = 1;
    other.arithmetic = Arithmetic::Lanes;
    if (!device.is_software) other.arithmetic = choose_arithmetic(device, false, false, true, f32_parts);
    const bool wide = plan.tile->m == 128;
    switch (other.arithmetic) {
        case Arithmetic::F32x1:
            other.tile = &kMatrixParts1[!wide];
            break;
        case Arithmetic::F32x2:
            other.tile = &kMatrixParts2[!wide];
            break;
        case Arithmetic::F32x3:
            other.tile = &kMatrixParts3[!wide];
            break;
        default:
            other.tile = device.is_software ? &kShared[2] : &kShared[!wide];
    }
    return other;
}

const char* suffix(Arithmetic arithmetic) {
    constexpr const char* kNames[] = {nullptr, "f16", "bf16", "f32x1", "f32x2", "f32x3", "h1", "h2"};
    return kNames[static_cast<uint32_t>(arithmetic)];
}

uint64_t plan_groups(const vulkan::DeviceInfo& device, const Plan& plan, uint64_t batch, uint64_t m,
                     uint64_t n) {
    uint64_t tiles = groups_of(*plan.tile, batch, m, n) * plan.parts;
    if (plan.ways > 1) tiles = plan.whole + (tiles - plan.whole) * plan.ways;
    const bool subgroups = std::string_view(plan.tile->kernel) == "subgroup";
    return subgroups ? ceil_div(tiles, plan.tile->workgroup / device.subgroup_size) : tiles;
}

uint64_t groups_of_marked(const vulkan::DeviceInfo& device, uint64_t groups) {
    constexpr uint64_t kMostMarks = 32;  // of a workgroup, which has a word for them
    return ceil_div(groups, std::clamp<uint64_t>(groups / (2 * device.cores()), 1, kMostMarks));
}

Plan plan_by_model(const vulkan::DeviceInfo& device, const Problem& p) {
    if (!p.floating || std::min(p.m, p.n) > kFewRows) return cheapest_plan(device, p);
    const bool gpu = uses_shared_memory(device);
    if (p.k_contiguous) {
        const Tile& tile = gpu ? kSubgroupGpu : kSubgroupSoftware;
        return plan_of_few(device, p, tile, cut_costs(device).shortest_part);
    }
    // Many k a part: joining the parts takes as long as reading a few thousand.
    if (gpu && p.n_contiguous && p.m <= kFewRows) return plan_of_few(device, p, kVector[p.m > 1], 4096);
    return cheapest_plan(device, p);
}

std::vector<Plan> candidate_plans(const vulkan::DeviceInfo& device, const Problem& p) {
    std::vector<Plan> plans = {plan_by_model(device, p)};
    const Plan model = plans[0];
    if (model.tile->m < 8 && model.tile->cost == 1) return plans;  // of few rows
    for (const Tile& tile : tiles_of(device, p)) {
        if (!can_use(device, p, tile)) continue;
        for (const bool swapped : {false, true}) {
            if (swapped && !p.may_swap) continue;
            const uint64_t groups = groups_of(tile, p.batch, swapped ? p.n : p.m, swapped ? p.m : p.n);
            uint32_t before = 0;
            for (const uint64_t parts : {model.parts / 2, model.parts, 2 * model.parts, 4 * model.parts}) {
                Plan plan{&tile, swapped, 1, 0, p.arithmetic};
                cut_k(plan, p, std::max<uint64_t>(p.may_cut ? parts : 1, least_parts(p)));
                if (plan.parts == before) continue;
                before = plan.parts;
                const auto add = [&] {
                    const bool is_model = plan.tile == model.tile && swapped == model.swapped &&
                                          plan.parts == model.parts && plan.ways == model.ways;
                    if (!is_model) plans.push_back(plan);
                };
                add();
                share_last(device, plan, p, groups * plan.parts);
                if (plan.ways > 1) add();
            }
        }
    }
    return plans;
}

}  // namespace anymps::ops
