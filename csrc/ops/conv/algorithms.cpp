#include "ops/conv/algorithms.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/conv/depthwise.h"
#include "ops/conv/nosmem.h"
#include "ops/conv/pack.h"
#include "ops/conv/variant.h"
#include "ops/conv/wgrad.h"

namespace anymps::ops {
namespace {

struct Operands {
    ConvTensor first, second;
};

int64_t longest_sum(const Direction& d) {
    return d.kind == Direction::Kind::Wgrad ? kLongestSum : UINT32_MAX;
}

// The form that packs give operands, where the device does not choose one.
Form packed_form(const Direction& d, const ConvDevice& device) {
    return arithmetic_of(device, d.plain[0]) == gemm::Arithmetic::BF16x2 ? Form::Bf16x2 : Form::Plain;
}

// True where the tiles load both operands as they are, and no pass over them makes up for itself: with
// several taps, which read an element that many times, f32 is split into its terms in any case.
bool reads_in_place(const Direction& d, const ConvDevice& device) {
    if (arithmetic_of(device, d.plain[0]) == gemm::Arithmetic::Simt) return true;
    const bool split = packed_form(d, device) == Form::Bf16x2 && d.taps > 1;
    return !split && is_vectorizable(device.info, d.plain).both();
}

// Operands in the order of memory that matrix units load as 16-byte vectors.
Operands add_packs(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first, Form form) {
    constexpr int64_t kFewColumns = 512, kFewRows = 128;
    const bool wgrad = d.kind == Direction::Kind::Wgrad;
    const ImplicitGemm& plain = d.plain[0];
    const Vectorizable vectors = is_vectorizable(builder.device.info, d.plain);
    // One tap reads what lies in vectors as it is; floats, if not many times.
    if (d.taps == 1 && vectors.both() && (wgrad || plain.strided.rows <= kFewRows))
        return {d.first, d.second};
    const ConvTensor second = add_packed(builder, d.second, form);
    const ConvTensor& first = read_first.form == form ? read_first : d.first;
    // Gradients of weights read that of the output as it is where they can: floats, if not many times.
    const bool once = form == Form::Plain || plain.g.count() <= kFewColumns;
    const bool keep = wgrad && vectors.strided && first.form == Form::Plain && once;
    return {keep ? first : add_packed(builder, first, form), second};
}

// The GEMMs of packed operands; where these are none that the tiles can read, lanes read the images as they
// are.
void add_packed_gemms(PlanBuilder& builder, const Direction& d, const Operands& operands, When when) {
    const Form form = packed_form(d, builder.device);
    auto gemms = d.gemms(operands.first.as(form), operands.second.as(form));
    const bool readable = is_vectorizable(builder.device.info, gemms).both();
    add_implicit_gemms(builder, readable ? std::move(gemms) : d.plain, longest_sum(d), when);
}

ConvTensor add_in_place(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    add_implicit_gemms(builder, d.plain, longest_sum(d));
    return d.first;
}

bool supports_in_place(const Direction& d, const ConvDevice& device) {
    return !d.scaled && reads_in_place(d, device);
}

ConvTensor add_staged(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first) {
    const Operands operands = add_packs(builder, d, read_first, packed_form(d, builder.device));
    add_packed_gemms(builder, d, operands, When::Always);
    return operands.first;
}

// Operands whose amaxes allow it are scaled f16, others what they would be without; both ways are recorded,
// and the device takes one.
ConvTensor add_staged_scaled(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first) {
    const bool in_place = reads_in_place(d, builder.device);
    const Operands operands =
        add_packs(builder, d, read_first, in_place ? Form::ScaledF16 : Form::Bf16x2OrScaledF16);
    auto scaled = d.gemms(operands.first.as(Form::ScaledF16), operands.second.as(Form::ScaledF16));
    if (!is_vectorizable(builder.device.info, scaled).both())
        return in_place ? add_in_place(builder, d, read_first) : add_staged(builder, d, read_first);
    add_implicit_gemms(builder, std::move(scaled), longest_sum(d), When::ScaleValid);
    if (in_place)
        add_implicit_gemms(builder, d.plain, longest_sum(d), When::Fallback);
    else
        add_packed_gemms(builder, d, operands, When::Fallback);
    return operands.first;
}

ConvTensor add_nosmem_bf16x2(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    auto gemms = add_nosmem_filter(builder, d.gemms(d.first, d.second), d.first, d.second, false);
    add_implicit_gemms(builder, std::move(gemms), longest_sum(d));
    return d.first;
}

ConvTensor add_nosmem(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    const bool flat = reads_positions(d, builder.device);
    const ConvTensor read = flat ? d.first : add_blocked(builder, d.first, d.scaled);
    ConvTensor image = read, filter = d.second;
    if (d.scaled) {
        image = flat ? read.as(Form::ScaledF16) : scaled_blocked(read);
        filter.form = Form::ScaledF16;
    }
    const When when = !d.scaled ? When::Always : d.fused_amax ? When::Fused : When::ScaleValid;
    add_implicit_gemms(builder, add_nosmem_filter(builder, d.gemms(image, filter), image, d.second, d.scaled),
                       longest_sum(d), when);
    if (!d.scaled) return d.first;
    if (flat)
        add_implicit_gemms(builder, d.plain, longest_sum(d), When::Fallback);
    else
        add_packed_gemms(builder, d, {read, add_packed(builder, d.second, Form::Bf16x2OrScaledF16)},
                         When::Fallback);
    return d.first;
}

constexpr ConvAlgorithm kAlgorithms[] = {
    {"depthwise", [](const Direction& d, const ConvDevice&) { return d.depthwise; }, add_depthwise},
    {"wgrad_1x1", supports_wgrad_1x1, add_wgrad_1x1},
    {"wgrad_3x3", supports_wgrad_3x3, add_wgrad_3x3},
    {"nosmem_bf16x2", supports_nosmem_bf16x2, add_nosmem_bf16x2},
    {"nosmem", supports_nosmem, add_nosmem},
    {"staged_scaled", [](const Direction& d, const ConvDevice&) { return d.scaled; }, add_staged_scaled},
    {"in_place", supports_in_place, add_in_place},
    {"staged", [](const Direction&, const ConvDevice&) { return true; }, add_staged},
};

// True where scaled f16 gains more than it takes to compute the amaxes of so many elements.
bool worth_scaled_f16(const ConvDevice& device, double products, double elements, int64_t taps) {
    if (device.info.is_software) return true;  // for tests
    const vulkan::DeviceProfile& profile = *device.info.profile;
    const vulkan::Tradeoff& costs = profile.costs->conv_scaled_f16;
    const double gain = (taps > 1 ? costs.product : profile.costs->conv_scaled_f16_1x1) *
                        profile.product_scale(vulkan::Rate::MatrixF16);
    return products * gain >
           costs.dispatches * profile.launch_scale() + elements * costs.element * profile.bytes_scale();
}

// Whether the algorithm of a direction uses amaxes; sets fused_amax.
bool wants_amax(Direction& d, const ConvDevice& device) {
    if (d.kind == Direction::Kind::Wgrad) return !supports_wgrad_1x1(d, device);
    d.fused_amax = may_fuse_amax(d, device);
    return !supports_nosmem_bf16x2(d, device);
}

// Amaxes of f32 operands that scaled f16 is worth it for. Directions share them.
void add_amaxes(PlanBuilder& builder, std::vector<Direction>& directions) {
    constexpr int64_t kMinRows = 8;
    const ConvProblem& p = builder.problem;
    const ConvDevice& device = builder.device;
    if (directions.empty() || directions[0].depthwise || !device.may_use_scaled_f16(p.x.memory.type)) return;
    if (p.groups > 1 && std::min(p.w.outer, p.w.channels) < kMinRows) return;
    if (p.w.numel(p.groups) == 0 || p.y.numel(p.groups) == 0) return;
    // By the number of the given buffer: x, w, y.
    struct Operand {
        ConvTensor image;
        bool fused = false;

        bool used() const { return image.memory.defined(); }
    } operands[3];
    double wanted = 0, elements = 0;
    for (Direction& d : directions) {
        if (!wants_amax(d, device)) continue;
        ++wanted;
        for (const ConvTensor* image : {&d.first, &d.second}) operands[image->memory.buffer].image = *image;
        if (d.fused_amax) operands[d.first.memory.buffer].fused = true;
    }
    if (operands[kW].used()) operands[kW].image = p.w;  // not transposed
    for (const Operand& f : operands)
        if (f.used()) elements += static_cast<double>(f.image.numel(p.groups));
    const double products =
        wanted * static_cast<double>(p.y.numel(p.groups)) * p.w.channels * p.w.positions();
    if (wanted == 0 || !worth_scaled_f16(device, products, elements, p.w.positions())) {
        for (Direction& d : directions) d.fused_amax = false;
        return;
    }
    for (const int buffer : {kY, kW, kX})
        if (operands[buffer].used())
            operands[buffer].image.amax = static_cast<int32_t>(builder.plan.amax_count++);
    for (Direction& d : directions) {
        d.scaled = true;
        for (ConvTensor* image : {&d.first, &d.second})
            image->amax = operands[image->memory.buffer].image.amax;
    }
    for (const Operand& f : operands)
        if (f.used()) add_amax(builder, f.image, f.fused);
}

// Returns the first operand as it was read.
ConvTensor add_direction(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first) {
    constexpr const char* kNames[] = {"fprop", "dgrad", "wgrad"};
    const std::string name = kNames[static_cast<int>(d.kind)];
    if (d.kind == Direction::Kind::Dgrad && !d.depthwise) {
        const Dim3& s = d.params.stride;
        const bool all = static_cast<int64_t>(d.plain.size()) == s[0] * s[1] * s[2];
        if (!all && !d.phases) builder.add(Pass::Kind::Zero, {{d.result.memory.buffer, true}});
        if (d.plain.empty()) {
            builder.plan.algorithms.push_back(name + " zero");
            return d.first;
        }
    }
    const auto chosen = std::ranges::find_if(
        kAlgorithms, [&](const ConvAlgorithm& a) { return a.supports(d, builder.device); });
    builder.plan.algorithms.push_back(name + " " + chosen->name);
    const ConvTensor read = chosen->plan(builder, d, read_first);
    if (d.phases) d.phases->add_join(builder, d.result, d.params);
    return read;
}

}  // namespace

std::span<const ConvAlgorithm> conv_algorithms() {
    return kAlgorithms;
}

ConvPlan make_plan(const ConvProblem& problem, ConvDevice device) {
    device.tf32 = problem.tf32;
    PlanBuilder builder(problem, device);
    std::vector<Direction> directions = directions_of(problem, device);
    for (Direction& d : directions) {
        if (!d.phases) continue;
        d.phases->allocate(builder);
        d.plain = d.gemms(d.first, d.second);
    }
    add_amaxes(builder, directions);
    std::optional<ConvTensor> read_y;
    for (const Direction& d : directions) {
        const int32_t first = builder.next_temporary();
        const bool reuses = d.kind == Direction::Kind::Wgrad && read_y;
        const ConvTensor read = add_direction(builder, d, reuses ? *read_y : d.first);
        if (d.kind == Direction::Kind::Dgrad) read_y = read;
        builder.release(first, problem.wgrad ? read.memory.buffer : kNoBuffer);
    }
    return std::move(builder.plan);
}

}  // namespace anymps::ops
