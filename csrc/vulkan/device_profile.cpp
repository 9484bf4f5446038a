#include "vulkan/device_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "vulkan/instance.h"

namespace anymps::vulkan {
namespace {

// Of VkPhysicalDeviceProperties::vendorID.
constexpr uint32_t kAmd = 0x1002, kNvidia = 0x10de, kIntel = 0x8086, kQualcomm = 0x5143, kArm = 0x13b5,
                   kApple = 0x106b;

// An H200's, by kernels of this package.
constexpr DeviceRates kHopperRates{.launch = 2.1e-6,
                                   .bytes = 3.9e12,
                                   .simt_f32 = 31e12,
                                   .matrix_f16 = 380e12,
                                   .matrix_bf16 = 400e12,
                                   .units = 132};

// An H100's: the same chip with slower memory.
constexpr DeviceRates kH100Rates = [] {
    DeviceRates rates = kHopperRates;
    rates.bytes = 2.93e12;
    return rates;
}();

constexpr PlanCosts kHopperCosts{
    .reference = kHopperRates,
    .unit = 5.7e-12,
    .prologue_k = 128,
    .reduce = 700000,
    .min_k_per_split = 256,
    .min_k_idle_unit = 64,
    .max_split_k = 32,
    .max_split_k_wgrad = 264,
    .results_per_unit = 2,
    .pack = 500000,
    .packed_per_unit = 5,
    .scaled_f16 = {.product = 29e-15, .element = 3.4e-12, .dispatches = 20e-6},
    // Unaligned operands halve the speed; a copy costs 2 ps an element and 10 us, half as much again to be
    // sure.
    .aligned_copy = {.product = 6e-15, .element = 512 * 6e-15, .dispatches = 2e9 * 6e-15},
    .conv_scaled_f16 = {.product = 12e-15, .element = 1.2e-12, .dispatches = 10e-6},
    .conv_scaled_f16_1x1 = 50e-15,
    .bf16x2_max_intensity = 105,
    .wgrad_max_intensity = 60,
    .wgrad_max_intensity_pass = 256,
    .fused_amax_max_rows = 512,
    .fused_amax_min_channels = 256,
    .amax_sample_groups = 132};

// lavapipe's, with 2 cores.
constexpr DeviceRates kSoftwareRates{
    .launch = 30e-6, .bytes = 8e9, .simt_f32 = 8.4e9, .matrix_f16 = 0, .matrix_bf16 = 0, .units = 2};

constexpr PlanCosts kSoftwareCosts = [] {
    PlanCosts costs = kHopperCosts;
    costs.reference = kSoftwareRates;
    costs.unit = 2.8e-9;
    costs.prologue_k = 0;
    costs.reduce = 30000;
    costs.min_k_per_split = costs.min_k_idle_unit = 1024;
    costs.max_split_k = costs.max_split_k_wgrad = 4;
    costs.results_per_unit = 1;
    costs.pack = 0;
    costs.packed_per_unit = 64;
    return costs;
}();

// By RADV's compiler, Mesa 25.0. Kernels on fragments count on NVIDIA's layout of them, which
// gemm/fragment_layout.h measures.
constexpr Exclusion kOnAmd[] = {
    {"matmul_pipelined_*", "a thread needs 222 of 256 registers"},
    {"conv_matrix_256x128x32_*", "spills vector registers"},
    {"flash_*_*x*x*_*", "fragments lie otherwise in registers"},
    {"conv_nosmem_*x*", "fragments lie otherwise in registers"},
    {"conv_resident_b*", "fragments lie otherwise in registers"},
    {"conv_wgrad_?x?_*x*", "fragments lie otherwise in registers"},
    {"matmul_scaled_fragments_32x64_*", "a tile of software drivers"},
};

// By ANV's compiler, Mesa 25.0: 16 lanes share 4 KiB of registers.
constexpr Exclusion kOnIntel[] = {
    {"softmax_long_*_persistent", "a thread has no registers left for a part of a row"},
    {"group_gradients_7_*", "a thread needs 87 registers"},
    {"attention_decode_4", "spills 131 to 263 registers; twice two rows take half of the cycles"},
};

// By turnip's compiler, Mesa 25.0.
constexpr Exclusion kOnAdreno[] = {
    {"attention_decode_4", "257 to 639 registers in memory"},
};

// Where a row names none: costs and rates of an H200.
template <size_t kCount>
constexpr std::array<DeviceProfile, kCount> with_defaults(const DeviceProfile (&rows)[kCount]) {
    auto result = std::to_array(rows);
    for (DeviceProfile& row : result) {
        if (row.costs == nullptr) row.costs = &kHopperCosts;
        if (row.rates.launch == 0) row.rates = kHopperRates;
    }
    return result;
}

// Before Xe2 a lane of 8 has twice the registers of one of 16. Others spill with 16, too, but take fewer
// cycles a lane then by the compiler's estimate.
constexpr Exclusion kNarrowOnIntel[] = {
    {"norm_gradients_*", "0.4 of the cycles a lane; 50 spilled registers -> 0"},
    {"attention_decode_*",
     "a key of f32 is 16 registers; 415 spilled registers -> 0, with fewer keys at once"},
    {"flash_simt_*",
     "as f32 products: 16 lanes leave 64 registers, of which tiles of scores and results take 32"},
    {"weighted_loss_*", "0.7 of the cycles a lane; 42 spilled registers -> 0"},
};

// docs/adding_a_gpu.md walks through a row.
constexpr auto kProfiles = with_defaults({
    {.name = "software",
     .match = {.software = true},
     .compute_units = 2,
     .compute_units_integrated = 2,
     .registers = 255,
     .costs = &kSoftwareCosts,
     .rows = {.target_groups = 64, .min_chunk = 16384, .prefetch_loads = 1},
     .rates = kSoftwareRates},
    {.name = "NVIDIA H100",
     .match = {.vendor_id = kNvidia, .matrix_bf16 = true, .names = {"H100", "H800"}},
     .registers = 255,
     .watchdog = false,  // of GPUs with a display alone, for longer than any dispatch of theirs takes
     .row_threads = 1024,
     .rates = kH100Rates},
    {.name = "NVIDIA Hopper",
     .match = {.vendor_id = kNvidia, .matrix_bf16 = true, .names = {"H200", "GH200"}},
     .registers = 255,
     .watchdog = false,  // of GPUs with a display alone, for longer than any dispatch of theirs takes
     .row_threads = 1024},
    {.name = "NVIDIA Ampere",  // and newer
     .match = {.vendor_id = kNvidia, .matrix_bf16 = true},
     .registers = 255,
     .watchdog = false,  // of GPUs with a display alone, for longer than any dispatch of theirs takes
     .row_threads = 1024},
    {.name = "NVIDIA Turing",  // and older
     .match = {.vendor_id = kNvidia},
     .registers = 255,
     .watchdog = false,  // of GPUs with a display alone, for longer than any dispatch of theirs takes
     .row_threads = 1024},
    {.name = "AMD RDNA3",  // and newer
     .match = {.vendor_id = kAmd, .matrix = true},
     .registers = 256,
     .excluded = kOnAmd},
    {.name = "AMD GCN",
     .match = {.vendor_id = kAmd, .min_subgroup_size = 64},
     .registers = 256,
     .excluded = kOnAmd},
    {.name = "AMD RDNA2",  // and RDNA1
     .match = {.vendor_id = kAmd},
     .registers = 256,
     .excluded = kOnAmd},
    {.name = "Intel Xe2",
     .match = {.vendor_id = kIntel, .min_subgroup_size = 16},
     .subgroup_size = 16,
     .registers = 128,
     .excluded = kOnIntel},
    {.name = "Intel Xe-HPG",
     .match = {.vendor_id = kIntel, .discrete = true},
     .subgroup_size = 16,
     .registers = 64,
     .excluded = kOnIntel,
     .narrow = kNarrowOnIntel},
    {.name = "Intel Gen9",  // to Xe-LP
     .match = {.vendor_id = kIntel},
     .subgroup_size = 16,
     .registers = 64,
     .excluded = kOnIntel,
     .narrow = kNarrowOnIntel},
    {.name = "Qualcomm Adreno", .match = {.vendor_id = kQualcomm}, .excluded = kOnAdreno},
    {.name = "Arm Mali", .match = {.vendor_id = kArm}},
    {.name = "Apple", .match = {.vendor_id = kApple}, .registers = 128},
    {.name = "other", .match = {}},
});

// * stands for any characters, ? for one.
bool matches(std::string_view pattern, std::string_view text) {
    for (; !pattern.empty() && pattern[0] != '*'; pattern.remove_prefix(1), text.remove_prefix(1)) {
        if (text.empty() || (pattern[0] != '?' && pattern[0] != text[0])) return false;
    }
    if (pattern.empty()) return text.empty();
    for (size_t skip = 0; skip <= text.size(); ++skip) {
        if (matches(pattern.substr(1), text.substr(skip))) return true;
    }
    return false;
}

bool any_matches(std::span<const Exclusion> some, std::string_view kernel) {
    return std::ranges::any_of(some, [&](const Exclusion& e) { return matches(e.kernels, kernel); });
}

bool matches(const ProfileMatch& match, const DeviceInfo& info) {
    const auto is_named = [&](std::string_view name) {
        return !name.empty() && info.name.find(name) != std::string::npos;
    };
    return match.software == info.is_software &&
           (match.vendor_id == 0 || match.vendor_id == info.vendor_id) &&
           (!match.matrix || info.cooperative_matrix) &&
           (!match.matrix_bf16 || info.cooperative_matrix_bfloat16) &&
           (!match.discrete || !info.is_integrated) && info.min_subgroup_size >= match.min_subgroup_size &&
           (match.names[0].empty() || std::ranges::any_of(match.names, is_named));
}

struct RateField {
    std::string_view name;
    double DeviceRates::*value;
};
constexpr RateField kRateFields[] = {
    {"launch", &DeviceRates::launch},           {"bytes", &DeviceRates::bytes},
    {"simt_f32", &DeviceRates::simt_f32},       {"matrix_f16", &DeviceRates::matrix_f16},
    {"matrix_bf16", &DeviceRates::matrix_bf16}, {"units", &DeviceRates::units},
};

double rate_of(const DeviceRates& rates, Rate rate) {
    return rate == Rate::SimtF32     ? rates.simt_f32
           : rate == Rate::MatrixF16 ? rates.matrix_f16
                                     : rates.matrix_bf16;
}

std::string number(const char* form, auto value) {
    char text[32];
    std::snprintf(text, sizeof(text), form, value);
    return text;
}

double ratio(double a, double b) {
    return a == b || a == 0 || b == 0 ? 1 : a / b;
}

}  // namespace

bool DeviceProfile::excludes(std::string_view kernel) const {
    return any_matches(excluded, kernel);
}

bool DeviceProfile::is_narrow(std::string_view kernel) const {
    return any_matches(narrow, kernel);
}

double DeviceProfile::product_scale(Rate rate) const {
    return ratio(rate_of(costs->reference, rate), rate_of(rates, rate));
}

double DeviceProfile::unit_scale(Rate rate) const {
    return product_scale(rate) * ratio(rates.units, costs->reference.units);
}

double DeviceProfile::bytes_scale() const {
    return ratio(costs->reference.bytes, rates.bytes);
}

double DeviceProfile::launch_scale() const {
    return ratio(rates.launch, costs->reference.launch);
}

std::span<const DeviceProfile> device_profiles() {
    return kProfiles;
}

const DeviceProfile& find_profile(const DeviceInfo& info) {
    const auto found = std::ranges::find_if(kProfiles, [&](const auto& p) { return matches(p.match, info); });
    return found == std::end(kProfiles) ? *std::rbegin(kProfiles) : *found;
}

DeviceProfile with_rates(const DeviceProfile& profile, const DeviceRates& rates) {
    DeviceProfile result = profile;
    result.rates = rates;
    return result;
}

bool parse_rates(const std::string& text, DeviceRates& rates) {
    DeviceRates found;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        const auto* field =
            std::ranges::find(kRateFields, std::string_view(word).substr(0, equals), &RateField::name);
        if (equals == std::string::npos || field == std::end(kRateFields)) return false;
        char* end = nullptr;
        const double value = std::strtod(word.c_str() + equals + 1, &end);
        if (*end != '\0' || end == word.c_str() + equals + 1 || !std::isfinite(value) || value < 0)
            return false;
        found.*field->value = value;
    }
    rates = found;
    return true;
}

std::string rates_text(const DeviceRates& rates) {
    std::string text;
    for (const RateField& field : kRateFields)
        text +=
            (text.empty() ? "" : " ") + std::string(field.name) + "=" + number("%.6g", rates.*field.value);
    return text;
}

std::string row_text(const DeviceInfo& info) {
    std::string text = "{.name = \"" + info.name + "\",  // planned as " + info.profile->name + "\n" +
                       " .match = {.vendor_id = " + number("0x%04x", info.vendor_id);
    if (info.cooperative_matrix) text += ", .matrix = true";
    if (info.cooperative_matrix_bfloat16) text += ", .matrix_bf16 = true";
    if (info.is_software)
        text += ", .software = true";
    else if (!info.is_integrated)
        text += ", .discrete = true";
    text += ", .min_subgroup_size = " + number("%u", info.min_subgroup_size) +
            "},\n .compute_units = " + number("%.0f", static_cast<double>(info.compute_units())) +
            ",\n .rates = {";
    const char* between = "";
    for (const RateField& field : kRateFields) {
        text += between + ("." + std::string(field.name)) + " = " +
                number("%.3g", info.profile->rates.*field.value);
        between = ", ";
    }
    return text + "}},";
}

}  // namespace anymps::vulkan
