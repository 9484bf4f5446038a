#include "ops/conv/nosmem.h"

#include <anymps/shaders/conv_nosmem_pack.h>

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/launch_config.h"
#include "ops/attention/attention.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;

constexpr int64_t kPanel = 64, kChannels = 32;  // that weights are padded to
constexpr int64_t kFragment = 256;              // elements
constexpr uint32_t kWarps = 4;
// Of so many channels to so many rows scaled f16 are faster than pairs: tiles of panels read the image
// once.
constexpr int64_t kPanelChannels = 128, kWideRows = 256;

// The taps of a GEMM as fragments of an A operand.
at::Tensor fragments(const ImplicitGemm& c, const ConvTensor& weights, bool positions,
                     const AmaxStates* amaxes) {
    const int64_t taps = c.k.positions(), panels = ceil_div(weights.outer, kPanel),
                  blocks = ceil_div(weights.channels, kChannels) * 2;
    const bool floats = weights.tensor.scalar_type() == at::kFloat;
    const auto type = floats ? at::kHalf : weights.tensor.scalar_type();
    const bool pairs = floats && amaxes == nullptr;
    const at::Tensor result = at::empty({panels, blocks, taps, (pairs ? 8 : 4) * kFragment},
                                        weights.tensor.options().dtype(pairs ? at::kBFloat16 : type));
    shaders::conv_nosmem_pack::NoSmemPackArgs args{};
    args.to = kernels::address(result);
    args.from = kernels::address(weights.tensor) + c.strided.offset * weights.tensor.element_size();
    args.row_stride = weights.outer_stride;
    args.channel_stride = weights.channel_stride;
    for (int axis = 0; axis < 3; ++axis) {
        args.tap_strides[axis] = c.strided.k.spatial[axis];
        args.sizes[axis] = static_cast<uint32_t>(c.k.spatial[axis]);
    }
    args.rows = static_cast<uint32_t>(weights.outer);
    args.channels = static_cast<uint32_t>(weights.channels);
    args.blocks = static_cast<uint32_t>(blocks);
    args.panels = static_cast<uint32_t>(panels);
    if (amaxes != nullptr) {
        args.amaxes = amaxes->address();
        args.amax_state = weights.amax_state;
        args.amax_count = static_cast<uint32_t>(amaxes->count);
    }
    const bool swapped = fragment_layout(pairs ? at::kBFloat16 : type).a_swapped;
    auto call = shaders::conv_nosmem_pack::conv_nosmem_pack.call({.workgroup = kWarps * 32,
                                                                  .subgroup = 32,
                                                                  .element_size = floats ? 4u : 2u,
                                                                  .swapped = swapped,
                                                                  .flat = positions,
                                                                  .bf16x2 = pairs});
    if (runtime::profiling()) runtime::profile_work(0, c10::str(weights.tensor.sizes()));
    if (amaxes != nullptr) amaxes->read_by(call);
    call.read(weights.tensor).write(result);
    call.dispatch(args, kernels::Grid::linear(ceil_div(panels * blocks * 4, kWarps)));
    return result;
}

// Whether no-smem tiles can read floats of one tap where they lie, as factors of `type`.
bool reads_floats(const ImplicitGemm& c, int64_t taps, at::ScalarType type) {
    if (taps != 1 || c.groups != 1 || c.strided.rows < kPanel || c.k.count() % kChannels != 0) return false;
    if (!may_use_scaled_f16(*c.im2col.tensor) || arithmetic_of(c) != Arithmetic::BF16x2) return false;
    return reads_positions(c) && lanes_hold_factors(type);
}

}  // namespace

bool may_skip_smem_of(std::span<const ImplicitGemm> plain, const ConvTensor& image, int64_t taps,
                      const AmaxStates* amaxes) {
    constexpr int64_t kMaxTaps = 32, kMaxBytes = int64_t{1} << 31;
    const ImplicitGemm& c = plain[0];
    const bool floats = image.tensor.scalar_type() == at::kFloat;
    const auto type = floats ? at::kHalf : image.tensor.scalar_type();
    if (floats != (amaxes != nullptr)) return false;
    const Arithmetic arithmetic = arithmetic_of(c);
    if (floats && arithmetic != Arithmetic::BF16x2) return false;
    if (!floats && arithmetic != Arithmetic::F16 && arithmetic != Arithmetic::BF16) return false;
    // Asked by the first convolution, when few pipelines are being compiled: what it waits for is known then.
    if (!lanes_hold_factors(type)) return false;
    for (const ImplicitGemm& phase : plain)
        if (phase.k.count() == 0) return false;
    // Single results, positions apart, take longer to store than few products.
    constexpr int64_t kMinOfPhases = 256;
    if (plain.size() > 1 && image.channels < kMinOfPhases && !stores_vec4(plain)) return false;
    if (c.groups != 1 || c.strided.rows < kPanel || image.channels % kChannels != 0 || taps > kMaxTaps)
        return false;
    // Of floats as they are, tiles in shared memory are no slower where few channels go to many rows.
    constexpr int64_t kMaxRows = 256, kMinChannels = 512;
    const int64_t rows = c.strided.rows, k = c.k.count();
    if (taps == 1 && plain.size() == 1 && reads_positions(c))
        return !floats || image.fused_amax || (rows <= kMaxRows && k >= kMinChannels);
    // Of packed ones neither, nor of several taps with few channels; strides have not been measured.
    constexpr int64_t kMinOfTaps = 128;
    const bool has_stride = plain.size() > 1 || c.im2col.row_step != Dim3{1, 1, 1};
    if (floats && (taps == 1 ? rows >= k : has_stride || image.channels < kMinOfTaps)) return false;
    return !is_vectorizable(plain).im2col && image.outer * image.positions() * image.channels * 2 < kMaxBytes;
}

std::vector<at::Tensor> nosmem_filter(std::vector<ImplicitGemm>& gemms, const ConvTensor& image,
                                      const ConvTensor& weights, const AmaxStates* amaxes) {
    std::vector<at::Tensor> result;
    for (const ImplicitGemm& c : gemms)
        result.push_back(fragments(c, weights, image.block_stride == 0, amaxes));
    for (size_t i = 0; i < gemms.size(); ++i) {
        ImplicitGemm& c = gemms[i];
        c.strided.tensor = &result[i];
        c.strided.offset = 0;
        const bool pairs = weights.tensor.scalar_type() == at::kFloat && amaxes == nullptr;
        if (pairs) c.weights = &weights.tensor;
        c.algo = pairs                     ? ConvAlgo::NoSmemBf16x2
                 : image.block_stride == 0 ? ConvAlgo::NoSmemFlat
                                           : ConvAlgo::NoSmemBlocked;
        c.block_stride = image.block_stride;
    }
    return result;  // the tensors stay where they are
}

bool may_fuse_amax(const ImplicitGemm& c, const ConvTensor& image, int64_t taps) {
    // More rows read the image more often. Of fewer channels only tiles that keep their part of the image
    // look.
    const vulkan::PlanCosts& costs = *runtime::device().info().profile->costs;
    constexpr int64_t kBlock = 16;  // positions: each image has one of its own, wherever it begins
    const int64_t positions = image.positions(), rows = c.strided.rows, k = c.k.count();
    const bool panels = k == kPanelChannels && rows >= kWideRows;
    if (rows > costs.fused_amax_max_rows || (k < costs.fused_amax_min_channels && !panels)) return false;
    if (positions < 2 * kBlock || c.g.positions() != positions) return false;
    return reads_floats(c, taps, at::kHalf);
}

bool may_be_nosmem_bf16x2(const ImplicitGemm& c, int64_t taps) {
    constexpr int64_t kPanels = 64;
    const double max_intensity = runtime::device().info().profile->costs->bf16x2_max_intensity;
    const int64_t rows = c.strided.rows, k = c.k.count();
    if (intensity(rows, k) > max_intensity || (k > kPanels && k <= kPanelChannels && rows >= kWideRows))
        return false;
    return reads_floats(c, taps, at::kBFloat16);
}

}  // namespace anymps::ops
