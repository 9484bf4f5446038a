#include "gemm/tiles.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "gemm/tile_table.h"
#include "kernels/launch_config.h"

namespace anymps::gemm {
namespace {

using kernels::ceil_div;

constexpr uint64_t kSmallSoftware = 1ull << 22;  // products, which take 1 ms
constexpr uint64_t kWorkspaceElements = 16ull << 20;

uint64_t groups_of(const Tile& tile, uint64_t batch, uint64_t m, uint64_t n) {
    return batch * ceil_div(m, tile.m) * ceil_div(n, tile.n);
}

// The profile's split-K costs in units of this device: equal to them where its rates are their reference's.
struct SplitKCosts {
    uint64_t reduce, pack;
    double results, packed;  // factors of PlanCosts' units an element
};

vulkan::Rate rate_of(Arithmetic arithmetic) {
    switch (arithmetic) {
        case Arithmetic::Simt:
            return vulkan::Rate::SimtF32;
        case Arithmetic::F16:
        case Arithmetic::F16x1:
        case Arithmetic::F16x2:
            return vulkan::Rate::MatrixF16;
        default:
            return vulkan::Rate::MatrixBf16;
    }
}

// On GPUs slices of products are in the second-level cache when they are added up, a third of the costs of
// memory: 3 to 9 million floats took an H200 6 to 12 us. Convolutions, which may have ten times as many
// slices, were measured without.
constexpr double kCachedSlices = 1.0 / 3;

SplitKCosts split_k_costs(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    const vulkan::DeviceProfile& profile = *device.profile;
    const double unit = profile.unit_scale(rate_of(p.arithmetic));
    const double launches = profile.launch_scale() / unit, bytes = profile.bytes_scale() / unit;
    const auto scaled = [](uint64_t units, double by) {
        return static_cast<uint64_t>(static_cast<double>(units) * by);
    };
    return {.reduce = scaled(profile.costs->reduce, launches),
            .pack = scaled(profile.costs->pack, launches),
            .results = p.convolution || device.is_software ? bytes : bytes * kCachedSlices,
            .packed = bytes};
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
    if (plan.tile->whole_k) split_k = 1;
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

// Of slices of min_k and more, in so many workgroups at most; without any where nothing fits.
Plan cheapest_plan(const vulkan::DeviceInfo& device, const GemmProblem& p, uint64_t min_k,
                   uint64_t max_groups) {
    const vulkan::PlanCosts& costs = *device.profile->costs;
    const double unit = costs.unit * device.profile->unit_scale(rate_of(p.arithmetic));
    const SplitKCosts split_costs = split_k_costs(device, p);
    const auto units = [](uint64_t elements, uint64_t elements_per_unit, double scale) {
        return static_cast<uint64_t>(static_cast<double>(elements / elements_per_unit) * scale);
    };
    const uint64_t least = min_split_k(p);
    const uint64_t limit = p.convolution ? costs.max_split_k_wgrad : costs.max_split_k;
    const uint64_t most = p.may_split_k ? std::max(least, std::min(limit, p.k / min_k)) : least;
    Plan best{};
    uint64_t best_time = UINT64_MAX;
    std::vector<const Tile*> tiles = usable_tiles(device, p);
    // Compiling a larger tile takes longer than it saves, and one kernel serves all small products.
    if (is_small(device, p.batch * p.m * p.n * p.k)) tiles.erase(tiles.begin(), tiles.end() - 1);
    for (const Tile* candidate : tiles) {
        const Tile& tile = *candidate;
        for (const bool swapped : {false, true}) {
            if (swapped && !p.may_swap) continue;
            const uint64_t groups = groups_of(tile, p.batch, swapped ? p.n : p.m, swapped ? p.m : p.n);
            // Coarser steps for large split-K factors.
            for (uint64_t split_k = least; split_k <= most; split_k += std::max<uint64_t>(1, split_k / 16)) {
                if (groups * split_k > max_groups) break;
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
                    time += split_costs.reduce + units(plan.split_k * p.batch * p.m * p.n,
                                                       costs.results_per_unit, split_costs.results);
                if (tile.fragments && !is_scaled_f16(p.arithmetic))
                    time += split_costs.pack +
                            units(p.batch * (p.m + p.n) * p.k, costs.packed_per_unit, split_costs.packed);
                plan.seconds = static_cast<double>(time) * unit;
                if (time < best_time) {
                    best_time = time;
                    best = plan;
                }
            }
        }
    }
    return best;
}

// Tile and split-K are chosen together: few results fill the device with large tiles and short slices.
Plan cheapest_plan(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    const vulkan::PlanCosts& costs = *device.profile->costs;
    const uint64_t units = device.compute_units();
    const Plan plan = cheapest_plan(device, p, costs.min_k_per_split, UINT64_MAX);
    const uint64_t rows = plan.swapped ? p.n : p.m, columns = plan.swapped ? p.m : p.n;
    if (2 * groups_of(*plan.tile, p.batch, rows, columns) * plan.split_k > units) return plan;
    const Plan wider = cheapest_plan(device, p, costs.min_k_idle_unit, units);
    return wider.tile && wider.seconds < plan.seconds ? wider : plan;
}

// Split-K of few rows, where the results alone do not fill the device. Of slices longer than kLongSlice a
// compute unit gets 32, not two: adding up what they result in is less than what two take longer to read.
Plan plan_of_few(const vulkan::DeviceInfo& device, const GemmProblem& p, const Tile& tile,
                 uint64_t min_k_per_split) {
    const uint64_t groups = groups_of(tile, p.batch, p.m, p.n), enough = 2 * device.compute_units();
    uint64_t split_k = min_split_k(p);
    if (groups < enough) {
        constexpr uint64_t kLongSlice = 1 << 17;
        split_k = std::max({split_k, std::min(enough / groups, p.k / min_k_per_split),
                            std::min(16 * enough / groups, p.k / kLongSlice)});
    }
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
    other.tile = &fallback_tile(device, other.arithmetic, *plan.tile);
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
    const bool subgroups = plan.tile->kind == TileKind::Subgroup;
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
        return plan_of_few(device, p, subgroup_tile(device), device.profile->costs->min_k_per_split);
    }
    // Long slices: the reduction takes as long as reading a few thousand k.
    if (gpu && p.n_contiguous && p.m <= kFewRows) return plan_of_few(device, p, vector_tile(p.m), 4096);
    return cheapest_plan(device, p);
}

std::vector<Plan> candidate_plans(const vulkan::DeviceInfo& device, const GemmProblem& p) {
    std::vector<Plan> plans = {plan_by_model(device, p)};
    const Plan model = plans[0];
    if (model.tile->kind != TileKind::Block) return plans;  // of few rows
    for (const Tile* candidate : usable_tiles(device, p)) {
        const Tile& tile = *candidate;
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

}  // namespace anymps::gemm
