#include "ops/conv/nosmem.h"

#include <anymps/shaders/conv/conv_nosmem_pack.h>

#include "kernels/launch_config.h"
#include "ops/conv/variant.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;

constexpr int64_t kPanel = 64, kChannels = 32;  // that weights are padded to
constexpr int64_t kFragment = 256;              // elements
constexpr uint32_t kWarps = 4;
// Of so many channels to so many rows scaled f16 are faster than pairs: tiles of panels read the image
// once.
constexpr int64_t kPanelChannels = 128, kWideRows = 256;

// The taps of a GEMM as fragments of an An operand.
Memory add_fragments(PlanBuilder& builder, const ImplicitGemm& c, const ConvTensor& filter, bool flat,
                     bool scaled) {
    const int64_t taps = c.k.positions(), panels = ceil_div(filter.outer, kPanel),
                  blocks = ceil_div(filter.channels, kChannels) * 2;
    const bool floats = filter.memory.type == DType::F32, pairs = floats && !scaled;
    const auto type = pairs ? DType::BF16 : floats ? DType::F16 : filter.memory.type;
    const Memory result = builder.temporary({panels, blocks, taps, (pairs ? 8 : 4) * kFragment}, type);
    shaders::conv_nosmem_pack::NoSmemPackArgs args{};
    args.row_stride = filter.outer_stride;
    args.channel_stride = filter.channel_stride;
    for (int axis = 0; axis < 3; ++axis) {
        args.tap_strides[axis] = c.strided.k.spatial[axis];
        args.sizes[axis] = static_cast<uint32_t>(c.k.spatial[axis]);
    }
    args.rows = static_cast<uint32_t>(filter.outer);
    args.channels = static_cast<uint32_t>(filter.channels);
    args.blocks = static_cast<uint32_t>(blocks);
    args.panels = static_cast<uint32_t>(panels);
    PassWriter pass(builder, shaders::conv_nosmem_pack::conv_nosmem_pack,
                    {.workgroup = kWarps * 32,
                     .subgroup = 32,
                     .element_size = floats ? 4u : 2u,
                     .swapped = builder.device.layout(type).a_swapped,
                     .flat = flat,
                     .cut = pairs});
    pass.address(args.to, result).address(args.from, filter.memory, c.strided.offset);
    if (scaled) {
        pass.amaxes(args.amaxes).amax(args.amax_state, filter.amax);
        args.amax_count = static_cast<uint32_t>(builder.plan.amax_count);
    }
    pass.read(filter.memory).write(result).work(0, builder.sizes(filter.memory));
    pass.dispatch(args, runtime::Grid::linear(ceil_div(panels * blocks * 4, kWarps)));
    return result;
}

// Whether no-smem tiles can read floats of one tap where they lie, as operands of `type`.
bool reads_floats(const Direction& d, const ConvDevice& device, DType type) {
    if (d.plain.size() != 1 || d.kind == Direction::Kind::Wgrad) return false;
    const ImplicitGemm& c = d.plain[0];
    if (d.taps != 1 || c.groups != 1 || c.strided.rows < kPanel || c.k.count() % kChannels != 0) return false;
    if (!device.may_use_scaled_f16(c.im2col.memory.type)) return false;
    return arithmetic_of(device, c) == gemm::Arithmetic::BF16x2 && reads_positions(d, device) &&
           device.holds_fragments(type);
}

}  // namespace

bool reads_positions(const Direction& d, const ConvDevice& device) {
    return d.taps == 1 && d.plain.size() == 1 &&
           variant_of(device.info, d.plain, Block::Vec4, false).reads_positions();
}

bool supports_nosmem(const Direction& d, const ConvDevice& device) {
    constexpr int64_t kMaxTaps = 32, kMaxBytes = int64_t{1} << 31;
    if (d.kind == Direction::Kind::Wgrad) return false;
    const ImplicitGemm& c = d.plain[0];
    const ConvTensor& image = d.first;
    const bool floats = image.memory.type == DType::F32;
    if (floats != d.scaled) return false;
    const gemm::Arithmetic arithmetic = arithmetic_of(device, c);
    if (floats ? arithmetic != gemm::Arithmetic::BF16x2
               : arithmetic != gemm::Arithmetic::F16 && arithmetic != gemm::Arithmetic::BF16)
        return false;
    if (!device.holds_fragments(floats ? DType::F16 : image.memory.type)) return false;
    for (const ImplicitGemm& phase : d.plain)
        if (phase.k.count() == 0) return false;
    // Single results, positions apart, take longer to store than few products.
    constexpr int64_t kMinOfPhases = 256;
    if (d.plain.size() > 1 && image.channels < kMinOfPhases &&
        !variant_of(device.info, d.plain, Block::Vec4, false).wide_out)
        return false;
    if (c.groups != 1 || c.strided.rows < kPanel || image.channels % kChannels != 0 || d.taps > kMaxTaps)
        return false;
    // Of floats as they are, tiles in shared memory are no slower where few channels go to many rows.
    constexpr int64_t kMaxRows = 256, kMinChannels = 512;
    const int64_t rows = c.strided.rows, k = c.k.count();
    if (reads_positions(d, device)) return !floats || d.fused_amax || (rows <= kMaxRows && k >= kMinChannels);
    // Of packed ones neither, nor of several taps with few channels; strides have not been measured.
    constexpr int64_t kMinOfTaps = 128;
    const bool has_stride = d.plain.size() > 1 || c.im2col.row_step != Dim3{1, 1, 1};
    if (floats && (d.taps == 1 ? rows >= k : has_stride || image.channels < kMinOfTaps)) return false;
    return !is_vectorizable(device.info, d.plain).im2col &&
           image.outer * image.positions() * image.channels * 2 < kMaxBytes;
}

std::vector<ImplicitGemm> add_nosmem_filter(PlanBuilder& builder, std::vector<ImplicitGemm> gemms,
                                            const ConvTensor& image, const ConvTensor& filter, bool scaled) {
    const bool pairs = filter.memory.type == DType::F32 && !scaled, flat = image.block_stride == 0;
    for (ImplicitGemm& c : gemms) {
        c.strided.memory = add_fragments(builder, c, filter, flat, scaled);
        c.strided.offset = 0;
        if (pairs) c.weights = filter.memory;
        c.algo = pairs  ? gemm::ConvAlgo::NoSmemBf16x2
                 : flat ? gemm::ConvAlgo::NoSmemFlat
                        : gemm::ConvAlgo::NoSmemBlocked;
        c.block_stride = image.block_stride;
    }
    return gemms;
}

bool may_fuse_amax(const Direction& d, const ConvDevice& device) {
    // More rows read the image more often. Of fewer channels only tiles that keep their part of the image are
    // worth it.
    const vulkan::PlanCosts& costs = *device.info.profile->costs;
    constexpr int64_t kBlock = 16;  // positions: each image has one of its own, wherever it begins
    if (!reads_floats(d, device, DType::F16)) return false;
    const ImplicitGemm& c = d.plain[0];
    const int64_t positions = d.first.positions(), rows = c.strided.rows, k = c.k.count();
    const bool panels = k == kPanelChannels && rows >= kWideRows;
    if (rows > costs.fused_amax_max_rows || (k < costs.fused_amax_min_channels && !panels)) return false;
    return positions >= 2 * kBlock && c.g.positions() == positions;
}

bool supports_nosmem_bf16x2(const Direction& d, const ConvDevice& device) {
    constexpr int64_t kPanels = 64;
    if (d.fused_amax || !reads_floats(d, device, DType::BF16)) return false;
    const int64_t rows = d.plain[0].strided.rows, k = d.plain[0].k.count();
    return intensity(rows, k) <= device.info.profile->costs->bf16x2_max_intensity &&
           (k <= kPanels || k > kPanelChannels || rows < kWideRows);
}

}  // namespace anymps::ops
