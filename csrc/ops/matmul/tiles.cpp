#include "ops/matmul/tiles.h"

#include <anymps/shaders/conv.h>
#include <anymps/shaders/matmul.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "kernels/launch_config.h"

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
// others they order the tiles by the same reasons (loads a result, idle compute units), which has not been
// measured.
constexpr Tile kMatrix16[] = {
    {"fragments_128x144", 128, 144, 192, 2070, 2, 0, true, 0, 1, 48},
    {"fragments_128x128", 128, 128, 256, 1910, 2, 18432, true, 0, 8},
    {"pipelined_128x192", 128, 192, 256, 3300, 1, 46080, false, 64, 1, 64, true},
    {"matrix_128x128x32", 128, 128, 256, 2930, 2, 20480},
    {"matrix_128x128x64", 128, 128, 256, 3240, 1, 36864},
    {"matrix_64x64x64", 64, 64, 128, 1160, 3, 18432},
};
// CPU drivers take seconds to compile a matrix product: the smallest tiles, for tests.
constexpr Tile kMatrixSoftware[] = {
    {"fragments_32x64", 32, 64, 16, 5, 1, 4608, true, 0, 2},
    {"pipelined_32x32", 32, 32, 32, 4, 1, 10240, false, 0, 1, 64, true},
    {"matrix_32x32x16", 32, 32, 64, 3, 1, 5120},
};
constexpr Tile kMatrixBf16x3[] = {
    {"matrix_128x128x16", 128, 128, 256, 18500, 1, 36864},
    {"matrix_64x64x16", 64, 64, 128, 6300, 3, 18432},
};
constexpr Tile kMatrixBf16x2[] = {
    {"matrix_128x128x16", 128, 128, 256, 7400, 2, 24576},
    {"matrix_64x64x32", 64, 64, 128, 3000, 3, 20480},
};
constexpr Tile kMatrixBf16x1[] = {
    {"matrix_128x128x32", 128, 128, 256, 5200, 2, 20480},
    {"matrix_64x64x32", 64, 64, 128, 2400, 3, 10240},
};

// Of halves that were cut before.
constexpr Tile kScaledF16x2[] = {
    {"scaled_fragments_128x64", 128, 64, 256, 2950, 2, 18432, true, 0, 8},
    {"packed_128x128x32", 128, 128, 256, 7470, 1, 36864},
    {"packed_64x64x32", 64, 64, 128, 2900, 2, 18432},
};
constexpr Tile kScaledF16x1[] = {
    {"scaled_fragments_128x128", 128, 128, 256, 2250, 2, 18432, true, 0, 8},
    {"packed_128x128x32", 128, 128, 256, 2820, 2, 20480},
    {"packed_64x64x32", 64, 64, 128, 1100, 3, 10240},
};
constexpr Tile kScaledF16Software[] = {
    {"scaled_fragments_32x64", 32, 64, 16, 1, 1, 4608, true, 0, 2},
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
constexpr Tile kConvNoSmem[] = {
    {"nosmem_64x128", 64, 128, 128, 1084, 3},
    {"nosmem_128x64", 128, 64, 128, 1084, 3},
};
constexpr Tile kConvResidentB64[] = {{"resident_b64_256x128", 256, 128, 128, 4336, 3}};
constexpr Tile kConvResidentB128[] = {{"resident_b128_256x128", 256, 128, 128, 4336, 3}};
constexpr Tile kConvNoSmemBf16x2[] = {{"nosmem_bf16x2_64x128", 64, 128, 128, 2750, 3}};
constexpr Tile kConvNoSmemBf16x2LongK[] = {{"nosmem_bf16x2_pipelined_64x128", 64, 128, 128, 2670, 2}};
constexpr Tile kConvResidentBBf16x2[] = {{"resident_b64_bf16x2_256x128", 256, 128, 128, 11000, 3}};
constexpr uint64_t kLongSum = 512;
constexpr Tile kConvBf16x2[] = {
    {"matrix_128x128x16", 128, 128, 256, 9000, 2, 24576},
    {"matrix_64x128x16", 64, 128, 128, 5000, 2, 18432},
    {"matrix_64x64x16", 64, 64, 128, 3000, 3, 12288},
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
    {"register", 8, 256, 64, 2048},
    {"register", 4, 128, 32, 512},
};

// Few results: each is a subgroup's.
constexpr Tile kSubgroupSoftware{"subgroup", 1, 1, 8, 1};
constexpr Tile kSubgroupGpu{"subgroup", 1, 1, 128, 1};
// Few rows, and operands that follow one another along the columns.
constexpr Tile kVector[] = {{"vector_1", 1, 16, 256, 1}, {"vector_4", 4, 16, 256, 1}};
constexpr uint64_t kFewRows = 4;

constexpr uint64_t kWorkspaceElements = 16ull << 20;

uint64_t groups_of(const Tile& tile, uint64_t batch, uint64_t m, uint64_t n) {
    return batch * ceil_div(m, tile.m) * ceil_div(n, tile.n);
}

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
            // Of the largest, AMD's compiler spills registers.
            if (p.convolution && !device.is_software)
                return std::span<const Tile>(kConv16).subspan(device.vendor_id == vulkan::kAmd ? 1 : 0);
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
    if (!p.floating) return kRegister;
    // Before Xe2 a lane of Intel's has half the registers. By its compiler's estimate a result of the largest
    // takes 527 cycles there, with spills, and 317 with the next; not measured on such a GPU.
    const bool spills = device.vendor_id == vulkan::kIntel && device.min_subgroup_size < 16 && !p.convolution;
    return std::span<const Tile>(kShared).subspan(spills ? 1 : 0);
}

// Split-K overhead beside the products, in the unit of the tiles' costs.
struct SplitKCosts {
    uint64_t prologue_k;       // start-up and epilogue of a workgroup, in k
    uint64_t reduce;           // reduction dispatch
    uint64_t min_k_per_split;  // shortest slice worth a workgroup
    uint64_t max_split_k;
    uint64_t max_split_k_wgrad;  // of weight gradients: few results, long sums
    uint64_t results_per_unit;   // workspace elements written and read again
    uint64_t pack;               // packing dispatch
    uint64_t packed_per_unit;    // elements packed
};
// Measured on an H200, where a unit is 5.7 ps.
constexpr SplitKCosts kSplitKGpu{128, 700000, 256, 32, 264, 2, 500000, 5};
constexpr SplitKCosts kSplitKSoftware{0, 30000, 1024, 4, 4, 1, 0, 64};

const SplitKCosts& split_k_costs(const vulkan::DeviceInfo& device) {
    return device.is_software ? kSplitKSoftware : kSplitKGpu;
}

// Time of so many workgroups for each k: full waves first; a compute unit below its occupancy hides less
// latency.
uint64_t modelled_time(const vulkan::DeviceInfo& device, const Tile& tile, uint64_t groups) {
    const uint64_t wave = device.compute_units() * tile.occupancy;
    const uint64_t last = ceil_div(groups % wave, device.compute_units());
    const uint64_t idle = last != 0 && last < tile.occupancy ? tile.cost_per_k / 2 : 0;
    return (groups / wave * tile.occupancy + last) * tile.cost_per_k + idle;
}

void set_split_k(Plan& plan, const GemmProblem& p, uint64_t split_k) {
    split_k = std::max<uint64_t>(1, std::min(split_k, kWorkspaceElements / (p.batch * p.m * p.n)));
    const bool sixteen = p.arithmetic == Arithmetic::F16 || p.arithmetic == Arithmetic::BF16;
    const bool halves = is_scaled_f16(p.arithmetic) || (p.convolution && sixteen);
    const uint64_t step = plan.tile->fragments || plan.tile->pipelined ? 64 : halves ? 32 : 16;
    const uint64_t k_per_split = std::max<uint64_t>(step, ceil_div(ceil_div(p.k, split_k), step) * step);
    plan.k_per_split = static_cast<uint32_t>(k_per_split);
    plan.split_k = static_cast<uint32_t>(std::max<uint64_t>(1, ceil_div(p.k, k_per_split)));
}

// Tail split of the last wave where half of it or more would be idle. All shares of a tile have as many k,
// whole steps of fragments.
void split_tail(const vulkan::DeviceInfo& device, Plan& plan, const GemmProblem& p, uint64_t groups) {
    const uint64_t wave = device.compute_units() * plan.tile->occupancy, last = groups % wave;
    uint32_t tail_split = 1;
    while (last != 0 && 2 * tail_split <= plan.tile->max_tail_split && last * 2 * tail_split <= wave)
        tail_split *= 2;
    constexpr uint64_t kStep = 64;
    const bool even = plan.k_per_split * uint64_t{plan.split_k} == ceil_div(p.k, kStep) * kStep;
    while (tail_split > 1 && (!even || plan.k_per_split % (kStep * tail_split) != 0)) tail_split /= 2;
    plan.tail_split = tail_split;
    plan.full_wave_tiles = static_cast<uint32_t>(groups - last);
}

uint64_t min_split_k(const GemmProblem& p) {
    return std::max<uint64_t>(1, ceil_div(p.k, p.max_k_per_split));
}

bool can_use(const vulkan::DeviceInfo& device, const GemmProblem& p, const Tile& tile) {
    if (tile.shared_bytes > device.shared_memory_bytes) return false;
    // Its threads have 222 registers, of which others' have fewer.
    const bool enough = device.vendor_id == vulkan::kNvidia || device.is_software;
    return !tile.pipelined || (p.vectorizable && enough);
}

// Tile and split-K are chosen together: few results fill the device with large tiles and short slices.
Plan cheapest_plan(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    const SplitKCosts& costs = split_k_costs(device);
    const uint64_t least = min_split_k(p);
    const uint64_t limit = p.convolution ? costs.max_split_k_wgrad : costs.max_split_k;
    const uint64_t most =
        p.may_split_k ? std::max(least, std::min(limit, p.k / costs.min_k_per_split)) : least;
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
            // Coarser steps for large split-K factors.
            for (uint64_t split_k = least; split_k <= most; split_k += std::max<uint64_t>(1, split_k / 16)) {
                Plan plan{&tile, swapped, 1, 0, p.arithmetic};
                set_split_k(plan, p, split_k);
                split_tail(device, plan, p, groups * plan.split_k);
                const uint64_t prologue_k = costs.prologue_k + tile.prologue_k;
                const uint64_t full_wave_tiles =
                    plan.tail_split > 1 ? plan.full_wave_tiles : groups * plan.split_k;
                uint64_t time = modelled_time(device, tile, full_wave_tiles) *
                                (std::min<uint64_t>(plan.k_per_split, p.k) + prologue_k);
                if (plan.tail_split > 1)
                    time += modelled_time(device, tile,
                                          (groups * plan.split_k - full_wave_tiles) * plan.tail_split) *
                            (plan.k_per_split / plan.tail_split + prologue_k);
                if (plan.split_k > 1)
                    time += costs.reduce + plan.split_k * p.batch * p.m * p.n / costs.results_per_unit;
                if (tile.fragments && !is_scaled_f16(p.arithmetic))
                    time += costs.pack + p.batch * (p.m + p.n) * p.k / costs.packed_per_unit;
                if (time < best_time) {
                    best_time = time;
                    best = plan;
                }
            }
        }
    }
    return best;
}

// Split-K of few rows, where the results alone do not fill the device.
Plan plan_of_few(const vulkan::DeviceInfo& device, const GemmProblem& p, const Tile& tile,
                 uint64_t min_k_per_split) {
    const uint64_t groups = groups_of(tile, p.batch, p.m, p.n), enough = 2 * device.compute_units();
    uint64_t split_k = min_split_k(p);
    if (groups < enough) split_k = std::max(split_k, std::min(enough / groups, p.k / min_k_per_split));
    Plan plan{&tile, false, 1, 0};
    set_split_k(plan, p, split_k);
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
                             uint32_t bf16_terms) {
    if (!uses_shared_memory(device) || matrix_subgroup(device) > 32) return Arithmetic::Simt;
    if (f16 && device.cooperative_matrix) return Arithmetic::F16;
    if (!device.cooperative_matrix || !device.cooperative_matrix_bfloat16) return Arithmetic::Simt;
    if (bf16) return Arithmetic::BF16;
    if (!f32) return Arithmetic::Simt;
    constexpr Arithmetic kParts[] = {Arithmetic::BF16x1, Arithmetic::BF16x2, Arithmetic::BF16x3};
    return kParts[bf16_terms - 1];
}

bool multiplies_scaled_f16(const vulkan::DeviceInfo& device) {
    return uses_shared_memory(device) && matrix_subgroup(device) <= 32 && device.cooperative_matrix;
}

Plan fallback_plan(const vulkan::DeviceInfo& device, const Plan& plan, uint32_t bf16_terms) {
    Plan other = plan;
    other.trial = 0;
    other.tail_split = 1;
    other.arithmetic = Arithmetic::Simt;
    if (!device.is_software) other.arithmetic = choose_arithmetic(device, false, false, true, bf16_terms);
    const bool wide = plan.tile->m == 128;
    switch (other.arithmetic) {
        case Arithmetic::BF16x1:
            other.tile = &kMatrixBf16x1[!wide];
            break;
        case Arithmetic::BF16x2:
            other.tile = &kMatrixBf16x2[!wide];
            break;
        case Arithmetic::BF16x3:
            other.tile = &kMatrixBf16x3[!wide];
            break;
        default:
            other.tile = device.is_software ? &kShared[2] : &kShared[!wide];
    }
    return other;
}

const char* suffix(Arithmetic arithmetic) {
    constexpr const char* kNames[] = {nullptr, "f16", "bf16", "bf16x1", "bf16x2", "bf16x3", "f16x1", "f16x2"};
    return kNames[static_cast<uint32_t>(arithmetic)];
}

std::string to_text(const GemmProblem& p, const Plan& plan) {
    const auto number = [](uint64_t n) { return std::to_string(n); };
    std::string text = number(p.batch) + " of " + number(p.m) + " x " + number(p.n) + " x " + number(p.k) +
                       ": " + plan.tile->kernel;
    if (const char* arithmetic = suffix(plan.arithmetic)) text += std::string("_") + arithmetic;
    text += " " + number(plan.tile->m) + " x " + number(plan.tile->n) + ", split-K " + number(plan.split_k);
    if (plan.tail_split > 1) text += ", tail split " + number(plan.tail_split);
    return text + (plan.swapped ? ", transposed" : "");
}

uint64_t plan_groups(const vulkan::DeviceInfo& device, const Plan& plan, uint64_t batch, uint64_t m,
                     uint64_t n) {
    uint64_t tiles = groups_of(*plan.tile, batch, m, n) * plan.split_k;
    if (plan.tail_split > 1) tiles = plan.full_wave_tiles + (tiles - plan.full_wave_tiles) * plan.tail_split;
    const bool subgroups = std::string_view(plan.tile->kernel) == "subgroup";
    return subgroups ? ceil_div(tiles, plan.tile->workgroup / device.subgroup_size) : tiles;
}

uint64_t groups_of_flagged(const vulkan::DeviceInfo& device, uint64_t groups) {
    constexpr uint64_t kMaxFlags = 32;  // of a workgroup, which has a word for them
    return ceil_div(groups, std::clamp<uint64_t>(groups / (2 * device.compute_units()), 1, kMaxFlags));
}

Plan plan_by_model(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    if (!p.floating || std::min(p.m, p.n) > kFewRows) return cheapest_plan(device, p);
    const bool gpu = uses_shared_memory(device);
    if (p.k_contiguous) {
        const Tile& tile = gpu ? kSubgroupGpu : kSubgroupSoftware;
        return plan_of_few(device, p, tile, split_k_costs(device).min_k_per_split);
    }
    // Long slices: the reduction takes as long as reading a few thousand k.
    if (gpu && p.n_contiguous && p.m <= kFewRows) return plan_of_few(device, p, kVector[p.m > 1], 4096);
    return cheapest_plan(device, p);
}

std::vector<Plan> candidate_plans(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    std::vector<Plan> plans = {plan_by_model(device, p)};
    const Plan model = plans[0];
    if (model.tile->m < 8 && model.tile->cost_per_k == 1) return plans;  // of few rows
    for (const Tile& tile : tiles_of(device, p)) {
        if (!can_use(device, p, tile)) continue;
        for (const bool swapped : {false, true}) {
            if (swapped && !p.may_swap) continue;
            const uint64_t groups = groups_of(tile, p.batch, swapped ? p.n : p.m, swapped ? p.m : p.n);
            uint32_t before = 0;
            for (const uint64_t split_k :
                 {model.split_k / 2, model.split_k, 2 * model.split_k, 4 * model.split_k}) {
                Plan plan{&tile, swapped, 1, 0, p.arithmetic};
                set_split_k(plan, p, std::max<uint64_t>(p.may_split_k ? split_k : 1, min_split_k(p)));
                if (plan.split_k == before) continue;
                before = plan.split_k;
                const auto add = [&] {
                    const bool is_model = plan.tile == model.tile && swapped == model.swapped &&
                                          plan.split_k == model.split_k &&
                                          plan.tail_split == model.tail_split;
                    if (!is_model) plans.push_back(plan);
                };
                add();
                split_tail(device, plan, p, groups * plan.split_k);
                if (plan.tail_split > 1) add();
            }
        }
    }
    return plans;
}

}  // namespace anymps::ops
