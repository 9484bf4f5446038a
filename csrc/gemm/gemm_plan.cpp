#include "gemm/gemm_plan.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "kernels/launch_config.h"

namespace anymps::gemm {
namespace {

using kernels::ceil_div;

constexpr uint64_t kWord = 8;  // elements; a multiple of 16 bytes for every type
constexpr uint64_t kMinKPerChunk = 64, kMaxChunks = 16;
constexpr double kMinScaledK = 64, kMaxScaledK = 1 << 23;  // the count of small numbers has 23 bits
constexpr double kMaxScaledElements = 1 << 28;             // that get a copy, of a gigabyte then

uint64_t rounded(uint64_t n, uint64_t to) {
    return ceil_div(n, to) * to;
}

uint32_t k_per_chunk(uint64_t k) {
    return static_cast<uint32_t>(std::max(kMinKPerChunk, ceil_div(k, kMaxChunks)));
}

bool worth_a_copy(const vulkan::DeviceInfo& device, const GemmCall& call, const GemmOperand& operand,
                  uint64_t others, const Plan& plan) {
    if (plan.arithmetic != Arithmetic::F16 && plan.arithmetic != Arithmetic::BF16) return false;
    if (plan.tile->fragments || operand.vectorizable) return false;
    const GemmProblem& p = call.problem;
    const double products = static_cast<double>(p.batch) * p.m * p.n * p.k;
    return worth_aligned_copy(*device.profile, others, products);
}

// Packing, the product, and the tiles that scaled f16 cannot hold.
void add_scaled(GemmPlan& plan, const vulkan::DeviceInfo& device, const GemmCall& call,
                const std::array<uint64_t, 2>& copies, uint64_t slices_bytes) {
    const GemmProblem& p = call.problem;
    const uint32_t terms = plan.product.arithmetic == Arithmetic::F16x2 ? 2 : 1;
    const auto add = [&](GemmPassKind kind, uint64_t bytes) { plan.all[plan.count++] = {kind, bytes}; };
    plan.fallback = fallback_plan(device, plan.product, call.bf16_terms);
    // One flag for the larger tile of both.
    const auto results = [](const Tile& tile) { return tile.m * tile.n; };
    Plan flagged = plan.fallback;
    if (results(*plan.product.tile) > results(*flagged.tile)) flagged.tile = plan.product.tile;
    plan.flagged = flagged.tile;
    plan.flag_count = plan_groups(device, flagged, p.batch, p.m, p.n);
    const uint64_t flags = plan.flag_count * sizeof(uint32_t);
    constexpr uint64_t kFloat = sizeof(float);
    if (plan.product.tile->fragments) {
        const uint64_t size = packed_scaled_fragments(copies[0], p.m, p.k, terms).size +
                              packed_scaled_fragments(copies[1], p.n, p.k, terms).size;
        add(GemmPassKind::PackScaledFragments, size * kFloat + flags);
        add(GemmPassKind::Gemm, slices_bytes);
    } else {
        add(GemmPassKind::PackScaledRowsA,
            packed_rows(copies[0], p.m, p.k, terms, call.a.follows_k).size * kFloat);
        add(GemmPassKind::PackScaledRowsB,
            packed_rows(copies[1], p.n, p.k, terms, call.b.follows_k).size * kFloat);
        add(GemmPassKind::Gemm, slices_bytes + flags);
    }
    add(GemmPassKind::FallbackGemm, 0);
}

const char* name_of(GemmPassKind kind) {
    constexpr const char* kNames[] = {"copy a",
                                      "copy b",
                                      "pack fragments",
                                      "amax, pack scaled fragments",
                                      "amax, pack scaled a",
                                      "amax, pack scaled b",
                                      "gemm",
                                      "if out of range: gemm",
                                      "reduce split-K"};
    return kNames[static_cast<uint32_t>(kind)];
}

}  // namespace

uint64_t GemmPlan::workspace_bytes() const {
    uint64_t bytes = 0;
    for (const GemmPass& pass : passes()) bytes += pass.bytes;
    return bytes;
}

GemmPlan make_gemm_plan(const vulkan::DeviceInfo& device, const GemmCall& asked, const Plan& plan) {
    GemmPlan result{.product = plan};
    GemmCall call = asked;
    if (plan.swapped) {
        std::swap(call.problem.m, call.problem.n);
        std::swap(call.a, call.b);
    }
    const GemmProblem& p = call.problem;
    const auto add = [&](GemmPassKind kind, uint64_t bytes = 0) {
        result.all[result.count++] = {kind, bytes};
    };
    const std::array<uint64_t, 2> copies{call.a.broadcast ? 1 : p.batch, call.b.broadcast ? 1 : p.batch};
    const bool reduces = plan.split_k > 1 || call.sum_batch;
    const uint64_t slices_bytes = reduces ? plan.split_k * p.batch * p.m * p.n * call.accumulator_bytes : 0;
    if (is_scaled_f16(plan.arithmetic)) {
        add_scaled(result, device, call, copies, slices_bytes);
    } else if (plan.tile->fragments) {
        const uint64_t size = packed_fragments(copies[0], p.m, p.k, PackedFragments::kPanel).size +
                              packed_fragments(copies[1], p.n, p.k, plan.tile->panel).size +
                              PackedFragments::kRead;
        add(GemmPassKind::PackFragments, size * call.item_bytes);
        add(GemmPassKind::Gemm, slices_bytes);
    } else {
        if (worth_a_copy(device, call, call.a, p.n, plan))
            add(GemmPassKind::CopyA,
                aligned_copy(copies[0], p.m, p.k, call.a.along_rows).size * call.item_bytes);
        if (worth_a_copy(device, call, call.b, p.m, plan))
            add(GemmPassKind::CopyB,
                aligned_copy(copies[1], p.n, p.k, call.b.along_rows).size * call.item_bytes);
        add(GemmPassKind::Gemm, slices_bytes);
    }
    if (reduces) add(GemmPassKind::ReduceSplitK);
    return result;
}

std::string to_text(const GemmCall& call, const GemmPlan& plan) {
    std::string text = to_text(call.problem, plan.product) + ' ';
    for (const GemmPass& pass : plan.passes()) {
        text += std::string("[") + name_of(pass.kind);
        if (pass.kind == GemmPassKind::FallbackGemm) {
            text += std::string(" ") + plan.fallback.tile->kernel;
            if (const char* arithmetic = suffix(plan.fallback.arithmetic))
                text += std::string("_") + arithmetic;
        }
        text += "]";
    }
    if (const uint64_t bytes = plan.workspace_bytes())
        text += " workspace " + std::to_string(bytes) + " bytes";
    char time[32] = "";
    if (plan.product.seconds > 0)
        std::snprintf(time, sizeof(time), " %.4g us (model)", plan.product.seconds * 1e6);
    return text + time;
}

bool worth_aligned_copy(const vulkan::DeviceProfile& profile, uint64_t others, double products) {
    const vulkan::Tradeoff& costs = profile.costs->aligned_copy;
    const double gain = costs.product * profile.product_scale(vulkan::Rate::MatrixF16);
    return static_cast<double>(others) * gain >= costs.element * profile.bytes_scale() &&
           products * gain >= costs.dispatches * profile.launch_scale();
}

bool worth_scaled_f16(const vulkan::DeviceInfo& device, double batch, double m, double n, double k) {
    if (device.is_software) return k > 0;
    if (k < kMinScaledK || k >= kMaxScaledK || batch * (m + n) * k > kMaxScaledElements) return false;
    const vulkan::DeviceProfile& profile = *device.profile;
    const vulkan::Tradeoff& costs = profile.costs->scaled_f16;
    const double gain = costs.product * profile.product_scale(vulkan::Rate::MatrixF16);
    return batch * m * n * k * gain > batch * (m + n) * k * costs.element * profile.bytes_scale() +
                                          costs.dispatches * profile.launch_scale();
}

PackedRows packed_rows(uint64_t copies, uint64_t rows, uint64_t k, uint32_t terms, bool follows_k) {
    PackedRows p{};
    p.vec8s = rounded(k, PackedRows::kStep) / 8;
    p.norms = rounded(copies * rows, 4);
    p.packed = copies * rows * p.vec8s * 4 * terms;
    p.k_of_chunk = k_per_chunk(k);
    p.chunks_per_row = follows_k ? 0 : ceil_div(k, p.k_of_chunk);
    p.size = p.norms + p.packed + copies * rows * p.chunks_per_row;
    return p;
}

PackedScaledFragments packed_scaled_fragments(uint64_t copies, uint64_t rows, uint64_t k, uint32_t terms) {
    constexpr uint64_t kPanel = PackedScaledFragments::kPanel;
    constexpr uint64_t kStepFloats = 512;  // of a panel, 16 k and one term
    constexpr uint64_t kPrefetch = 2;      // steps that the product loads ahead
    PackedScaledFragments p{};
    p.norms = rounded(copies * rows, 32);
    p.steps = 4 * ceil_div(k, kPanel);
    p.k_of_chunk = k_per_chunk(k);
    p.chunks_per_row = ceil_div(k, p.k_of_chunk);
    const uint64_t panels = copies * ceil_div(rows, kPanel);
    p.size = rounded(
        p.norms + (panels * p.steps + kPrefetch) * kStepFloats * terms + copies * rows * p.chunks_per_row,
        32);
    return p;
}

PackedFragments packed_fragments(uint64_t copies, uint64_t rows, uint64_t k, uint64_t panel) {
    constexpr uint64_t kPanel = PackedFragments::kPanel, kStep = PackedFragments::kStep;
    PackedFragments p{};
    p.panels = ceil_div(rounded(rows, kPanel), panel);
    p.steps = kPanel / kStep * ceil_div(k, kPanel);
    p.size = copies * p.panels * panel * p.steps * kStep;
    return p;
}

AlignedCopy aligned_copy(uint64_t copies, uint64_t rows, uint64_t k, bool along_rows) {
    const uint64_t pitch = rounded(along_rows ? rows : k, kWord), count = along_rows ? k : rows;
    return {.count = count, .pitch = pitch, .size = copies * count * pitch};
}

}  // namespace anymps::gemm
