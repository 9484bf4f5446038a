#include "ops/conv/direct.h"

#include <anymps/shaders/conv_direct.h>

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/team.h"
#include "ops/attention/attention.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;

constexpr int64_t kPanel = 64, kChannels = 32;  // that weights are padded to
constexpr int64_t kFragment = 256;              // elements
constexpr uint32_t kWarps = 4;
// Of so many channels to so many rows scaled halves are faster than pairs: tiles of panels read the image
// once.
constexpr int64_t kPanelChannels = 128, kWideRows = 256;

// The taps of a contraction as fragments of a left factor.
at::Tensor fragments(const Contraction& c, const Image& weights, bool positions, const HalfRanges* ranges) {
    const int64_t taps = c.k.positions(), panels = ceil_div(weights.outer, kPanel),
                  blocks = ceil_div(weights.channels, kChannels) * 2;
    const bool floats = weights.tensor.scalar_type() == at::kFloat;
    const auto type = floats ? at::kHalf : weights.tensor.scalar_type();
    const bool pairs = floats && ranges == nullptr;
    const at::Tensor result = at::empty({panels, blocks, taps, (pairs ? 8 : 4) * kFragment},
                                        weights.tensor.options().dtype(pairs ? at::kBFloat16 : type));
    shaders::conv_direct::DirectPackArgs args{};
    args.to = kernels::address(result);
    args.from = kernels::address(weights.tensor) + c.affine.offset * weights.tensor.element_size();
    args.row_stride = weights.outer_stride;
    args.channel_stride = weights.channel_stride;
    for (int axis = 0; axis < 3; ++axis) {
        args.tap_strides[axis] = c.affine.k.spatial[axis];
        args.sizes[axis] = static_cast<uint32_t>(c.k.spatial[axis]);
    }
    args.rows = static_cast<uint32_t>(weights.outer);
    args.channels = static_cast<uint32_t>(weights.channels);
    args.blocks = static_cast<uint32_t>(blocks);
    args.panels = static_cast<uint32_t>(panels);
    if (ranges != nullptr) {
        args.ranges = ranges->address();
        args.range = weights.range;
        args.range_count = static_cast<uint32_t>(ranges->count);
    }
    const bool swapped = fragment_places(pairs ? at::kBFloat16 : type).left_swapped;
    auto call = shaders::conv_direct::conv_direct_pack.call({.workgroup = kWarps * 32,
                                                             .subgroup = 32,
                                                             .item = floats ? 4u : 2u,
                                                             .swapped = swapped,
                                                             .apart = positions,
                                                             .cut = pairs});
    if (runtime::profiling()) runtime::profile_work(0, c10::str(weights.tensor.sizes()));
    if (ranges != nullptr) ranges->read_by(call);
    call.read(weights.tensor).write(result);
    call.dispatch(args, kernels::Grid::linear(ceil_div(panels * blocks * 4, kWarps)));
    return result;
}

// Whether direct tiles can read floats of one tap where they lie, as factors of `type`.
bool reads_floats(const Contraction& c, int64_t taps, at::ScalarType type) {
    if (taps != 1 || c.groups != 1 || c.affine.rows < kPanel || c.k.count() % kChannels != 0) return false;
    if (!may_be_halves(*c.gathered.tensor) || arithmetic_of(c) != Arithmetic::F32x2) return false;
    return reads_positions(c) && lanes_hold_factors(type);
}

}  // namespace

bool may_be_direct(std::span<const Contraction> plain, const Image& image, int64_t taps,
                   const HalfRanges* ranges) {
    constexpr int64_t kMostTaps = 32, kMostBytes = int64_t{1} << 31;
    const Contraction& c = plain[0];
    const bool floats = image.tensor.scalar_type() == at::kFloat;
    const auto type = floats ? at::kHalf : image.tensor.scalar_type();
    if (floats != (ranges != nullptr)) return false;
    const Arithmetic arithmetic = arithmetic_of(c);
    if (floats && arithmetic != Arithmetic::F32x2) return false;
    if (!floats && arithmetic != Arithmetic::F16 && arithmetic != Arithmetic::BF16) return false;
    // Asked by the first convolution, when few pipelines are being compiled: what it waits for is known then.
    if (!lanes_hold_factors(type)) return false;
    for (const Contraction& phase : plain)
        if (phase.k.count() == 0) return false;
    // Single results, positions apart, take longer to store than few products.
    constexpr int64_t kFewestOfPhases = 256;
    if (plain.size() > 1 && image.channels < kFewestOfPhases && !stores_words(plain)) return false;
    if (c.groups != 1 || c.affine.rows < kPanel || image.channels % kChannels != 0 || taps > kMostTaps)
        return false;
    // Of floats as they are, tiles in shared memory are no slower where few channels go to many rows.
    constexpr int64_t kMostRows = 256, kFewestChannels = 512;
    const int64_t rows = c.affine.rows, k = c.k.count();
    if (taps == 1 && plain.size() == 1 && reads_positions(c))
        return !floats || image.seen || (rows <= kMostRows && k >= kFewestChannels);
    // Of packed ones neither, nor of several taps with few channels; strides have not been measured.
    constexpr int64_t kFewestOfTaps = 128;
    const bool strided = plain.size() > 1 || c.gathered.row_step != Triple{1, 1, 1};
    if (floats && (taps == 1 ? rows >= k : strided || image.channels < kFewestOfTaps)) return false;
    return !reads_words(plain).gathered && image.outer * image.positions() * image.channels * 2 < kMostBytes;
}

std::vector<at::Tensor> direct_weights(std::vector<Contraction>& contractions, const Image& image,
                                       const Image& weights, const HalfRanges* ranges) {
    std::vector<at::Tensor> result;
    for (const Contraction& c : contractions)
        result.push_back(fragments(c, weights, image.block_stride == 0, ranges));
    for (size_t i = 0; i < contractions.size(); ++i) {
        Contraction& c = contractions[i];
        c.affine.tensor = &result[i];
        c.affine.offset = 0;
        const bool pairs = weights.tensor.scalar_type() == at::kFloat && ranges == nullptr;
        if (pairs) c.weights = &weights.tensor;
        c.direct = pairs ? Direct::Pairs : image.block_stride == 0 ? Direct::Positions : Direct::Image;
        c.block_stride = image.block_stride;
    }
    return result;  // the tensors stay where they are
}

bool may_see_range(const Contraction& c, const Image& image, int64_t taps) {
    // More rows read the image more often: 256 -> 1024 channels at 14 pixels took 88 us on an H200, 76 with
    // the look. Of fewer channels only tiles that keep their part of the image look.
    constexpr int64_t kMostRows = 512, kFewestChannels = 256;
    constexpr int64_t kBlock = 16;  // positions: each image has one of its own, wherever it begins
    const int64_t positions = image.positions(), rows = c.affine.rows, k = c.k.count();
    const bool panels = k == kPanelChannels && rows >= kWideRows;
    if (rows > kMostRows || (k < kFewestChannels && !panels)) return false;
    if (positions < 2 * kBlock || c.g.positions() != positions) return false;
    return reads_floats(c, taps, at::kHalf);
}

bool may_be_direct_pairs(const Contraction& c, int64_t taps) {
    constexpr double kMostIntensity = 105;
    constexpr int64_t kPanels = 64;
    const int64_t rows = c.affine.rows, k = c.k.count();
    if (intensity(rows, k) > kMostIntensity || (k > kPanels && k <= kPanelChannels && rows >= kWideRows))
        return false;
    return reads_floats(c, taps, at::kBFloat16);
}

}  // namespace anymps::ops
