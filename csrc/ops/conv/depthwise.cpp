#include "ops/conv/depthwise.h"

#include <anymps/shaders/conv_depthwise.h>
#include <anymps/shaders/conv_depthwise_strips.h>
#include <anymps/shaders/conv_depthwise_weight.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/flat_grid.h"
#include "kernels/image.h"
#include "ops/matmul/tiles.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::FastDivider;
namespace shader = shaders::conv_depthwise;
namespace strips = shaders::conv_depthwise_strips;
namespace weight_strips = shaders::conv_depthwise_weight;

using shader::kRows;
using shader::kTaps;
using shader::kThreads;

void sizes_of(const kernels::Image& image, std::array<uint32_t, 3>& sizes) {
    for (int axis = 0; axis < 3; ++axis) sizes[axis] = image.size(2 + axis);
}

FastDivider divider(uint64_t value) {
    return FastDivider(static_cast<uint32_t>(value));
}

using shaders::lib::conv_depthwise::StripAxis;
using shaders::lib::conv_depthwise::StripLayout;

// Threads of a workgroup, at most. Software drivers take long for barriers of many.
uint32_t max_workgroup() {
    return uses_shared_memory(runtime::device().info()) ? 256 : 64;
}

constexpr kernels::KernelFamily kStripKernels(strips::kernels_with<strips::StripArgs>,
                                              {"conv_depthwise_3", "conv_depthwise_5", "conv_depthwise_7"},
                                              {"_stride1", "_stride2", "_stride2_gradient"}, {"", "_words"});
constexpr kernels::KernelFamily kWeightStripKernels(
    weight_strips::kernels_with<weight_strips::StripWeightArgs>,
    {"conv_depthwise_weight_3", "conv_depthwise_weight_5", "conv_depthwise_weight_7"},
    {"_stride1", "_stride2"}, {"", "_words"});

// What the kernels of strips (shaders/conv_depthwise_strips.slang) make of a convolution. Axes are 3 (height)
// and 4.
struct Strips {
    int along, across;
    bool channels_fast;               // of the results
    bool words;                       // four channels a thread, not one
    uint32_t taps, stride, dilation;  // along the strips

    uint32_t kernel() const { return (taps - 3) / 2; }
    uint32_t channels_a_thread() const { return words ? 4 : 1; }
};

bool is_known(int64_t taps) {
    return taps == 3 || taps == 5 || taps == 7;
}

// Whether four channels are one load.
bool is_wide(const kernels::Image& image) {
    const auto item = static_cast<uint64_t>(image.tensor().element_size());
    bool wide =
        image.channels_fast() && image.size(1) % 4 == 0 && kernels::address(image.tensor()) % (4 * item) == 0;
    for (const int axis : {0, 3, 4}) wide = wide && image.strides().values[axis] % 4 == 0;
    return wide;
}

// Offsets along an axis are 32 bits of bytes.
bool is_near(const kernels::Image& image) {
    const auto item = static_cast<uint64_t>(image.tensor().element_size());
    for (const int axis : {3, 4})
        if (item * image.strides().values[axis] * image.size(axis) > UINT32_MAX) return false;
    return true;
}

// Empty where strips do not serve it. `from` and `to`: the image and the result, or x and the gradient of y.
std::optional<Strips> strips_of(const kernels::Image& from, const kernels::Image& to,
                                const kernels::Image& taps, const ConvParams& axes, bool gradient) {
    Strips result{};
    result.channels_fast = to.channels_fast();
    result.along = result.channels_fast ? 4 : 3;
    result.across = 7 - result.along;
    result.taps = taps.size(result.along);
    const Dim3 &stride = axes.stride, &dilation = axes.dilation;
    const int along = result.along - 2, across = result.across - 2;
    result.stride = static_cast<uint32_t>(std::min<int64_t>(stride[along], 3));
    result.dilation = static_cast<uint32_t>(dilation[along]);
    if (from.tensor().numel() == 0) return {};
    const bool flat = from.size(2) == 1 && to.size(2) == 1 && taps.size(2) == 1;
    const bool known = is_known(result.taps) && result.stride <= 2;
    if (!flat || !known || from.size(1) != to.size(1) || taps.size(result.across) > result.taps) return {};
    if ((result.stride > 1 && dilation[along] != 1) || !is_near(from) || !is_near(to)) return {};
    if (gradient && (stride[across] != stride[along] || (result.stride == 2 && dilation[across] != 1)))
        return {};
    result.words = is_wide(from) && is_wide(to);
    return result;
}

// Results of a strip: the fewest positions to read, for all strips of `results`.
uint32_t strip_size(uint32_t results, uint32_t taps, bool even) {
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t size = 8; size >= 4; size -= even ? 2 : 1) {
        const auto reads = static_cast<uint32_t>(ceil_div(results, size)) * (size + taps - 1);
        if (reads < least) {
            best = size;
            least = reads;
        }
    }
    return best;
}

// Channels side by side in a workgroup, in values of a thread: as many as make blocks of equal size.
uint32_t lanes_of(uint32_t values) {
    return static_cast<uint32_t>(ceil_div(values, ceil_div(values, strips::kMaxLanes)));
}

// Which numbers an axis has in a kernel. flipped: gradients of x with a stride of 1 are convolutions with the
// taps in the other order.
StripAxis strip_axis(int axis, const kernels::Image& from, const kernels::Image& to,
                     const kernels::Image& taps, const ConvParams& axes, bool flipped) {
    const auto item = static_cast<uint32_t>(to.tensor().element_size());
    StripAxis result{};
    result.image_size = from.size(axis);
    result.out_size = to.size(axis);
    result.image_step = from.strides().values[axis] * item;
    result.out_step = to.strides().values[axis] * item;
    result.taps = taps.size(axis);
    result.stride = static_cast<uint32_t>(axes.stride[axis - 2]);
    result.dilation = static_cast<uint32_t>(axes.dilation[axis - 2]);
    result.padding = static_cast<int32_t>(axes.padding[axis - 2]);
    result.weight_step = static_cast<int32_t>(taps.strides().values[axis]);
    if (flipped) {
        result.padding = static_cast<int32_t>(result.dilation * (result.taps - 1)) - result.padding;
        result.weight_step = -result.weight_step;
    }
    return result;
}

// extra: results before the first one that the first strip has. lanes: 0, or values of channels in a block.
StripLayout strip_layout(const Strips& plan, const kernels::Image& from, const kernels::Image& to,
                         const kernels::Image& taps, const ConvParams& axes, bool flipped, uint32_t strip,
                         uint32_t extra, uint32_t lanes) {
    StripLayout result{};
    result.image_batch = from.strides().values[0];
    result.image_channel = from.strides().values[1];
    result.out_batch = to.strides().values[0];
    result.out_channel = to.strides().values[1];
    result.channels = to.size(1);
    result.along = strip_axis(plan.along, from, to, taps, axes, flipped);
    result.across = strip_axis(plan.across, from, to, taps, axes, flipped);
    const uint32_t spread = result.along.dilation;
    const auto count =
        static_cast<uint32_t>(ceil_div(to.size(plan.along) + extra, uint64_t{strip} * spread)) * spread;
    result.blocks =
        divider(lanes == 0 ? 1 : ceil_div(ceil_div(result.channels, plan.channels_a_thread()), lanes));
    result.channel_digit = divider(result.channels);
    result.across_digit = divider(to.size(plan.across));
    result.strip_digit = divider(count);
    result.spread = divider(spread);
    result.total = kernels::group_count(uint64_t{count} * to.size(plan.across) * to.size(0) *
                                        (lanes == 0 ? result.channels : 1));
    return result;
}

void run_strips(const Strips& plan, const kernels::Image& from, const kernels::Image& to,
                const kernels::Image& taps, const Tensor* bias, const ConvParams& axes, bool gradient) {
    constexpr uint64_t kGroupsAUnit = 8, kMaxRounds = 8;
    const bool flipped = gradient && plan.stride == 1, strided = gradient && plan.stride == 2;
    const auto item = static_cast<uint64_t>(to.tensor().element_size());
    // Strips of a strided gradient begin where the first tap is on a position of y.
    const uint32_t extra = strided ? axes.padding[plan.along - 2] & 1 : 0;
    const uint32_t strip =
        strip_size(ceil_div(to.size(plan.along) + extra, plan.dilation), plan.taps, strided);
    const uint32_t lanes = plan.words ? lanes_of(to.size(1) / 4) : 0;
    strips::StripArgs args{};
    args.image = kernels::address(from.tensor());
    args.weight = kernels::address(taps.tensor());
    args.out = kernels::address(to.tensor());
    if (bias != nullptr) {
        args.bias = kernels::address(*bias);
        args.bias_stride = static_cast<uint32_t>(bias->stride(0));
    }
    args.layout = strip_layout(plan, from, to, taps, axes, flipped, strip, extra, lanes);
    if (flipped)
        for (const int axis : {3, 4})
            args.weight += item * taps.strides().values[axis] * (taps.size(axis) - 1);
    args.weight_channel = taps.strides().values[0];
    args.taps = divider(taps.size(3) * taps.size(4));
    const uint32_t workgroup = max_workgroup();
    const uint64_t slots = workgroup / std::max(lanes, 1u), blocks = args.layout.blocks.divisor;
    // A workgroup reads the taps of its channels first: the more strips, the less that counts.
    const uint64_t groups = kGroupsAUnit * runtime::device().info().compute_units();
    args.rounds =
        plan.words ? std::clamp<uint64_t>(args.layout.total * blocks / (slots * groups), 1, kMaxRounds) : 1;
    auto call = kStripKernels(plan.kernel(), strided ? 2 : plan.stride - 1, plan.words)
                    .call({.workgroup = workgroup,
                           .type = kernels::code(to.tensor().scalar_type()),
                           .channels_fast = plan.channels_fast,
                           .strip = strip,
                           .lanes = lanes,
                           .has_bias = bias != nullptr});
    call.read(from.tensor()).read(taps.tensor()).write(to.tensor());
    if (bias != nullptr) call.read(*bias);
    call.dispatch(args, kernels::Grid::linear(blocks * ceil_div(args.layout.total, slots * args.rounds)));
}

void run_weight_strips(const Strips& plan, const kernels::Image& x, const kernels::Image& y,
                       const kernels::Image& taps, const ConvParams& axes) {
    constexpr uint64_t kGroupsAUnit = 4, kMinRounds = 4;
    const uint32_t strip = strip_size(ceil_div(y.size(plan.along), plan.dilation), plan.taps, false);
    // Software drivers gather one element after another in any case, and take long for a workgroup.
    const bool side_by_side = plan.channels_fast || !uses_shared_memory(runtime::device().info());
    const uint32_t lanes = plan.words ? lanes_of(y.size(1) / 4) : side_by_side ? lanes_of(y.size(1)) : 1;
    weight_strips::StripWeightArgs args{};
    args.x = kernels::address(x.tensor());
    args.y = kernels::address(y.tensor());
    args.layout = strip_layout(plan, x, y, taps, axes, false, strip, 0, lanes);
    // What no result reaches is not multiplied, not even by zero.
    StripAxis& along = args.layout.along;
    const int64_t reached = int64_t{along.out_size - 1} * along.stride +
                            int64_t{along.taps - 1} * along.dilation + 1 - along.padding;
    along.image_size = static_cast<uint32_t>(std::clamp<int64_t>(reached, 1, along.image_size));
    const uint64_t lines = args.layout.across.taps, blocks = args.layout.blocks.divisor,
                   total = args.layout.total;
    args.workers = std::max<uint32_t>(1, static_cast<uint32_t>(max_workgroup() / (lanes * lines)));
    const uint64_t groups = kGroupsAUnit * runtime::device().info().compute_units();
    const uint64_t wanted =
        std::clamp<uint64_t>(groups / blocks, 1, std::max<uint64_t>(1, total / (kMinRounds * args.workers)));
    args.strips_per_split = static_cast<uint32_t>(ceil_div(total, wanted));
    const uint64_t splits = ceil_div(total, args.strips_per_split);
    args.groups = kernels::group_count(blocks * splits);
    const auto count = static_cast<int64_t>(lines * plan.taps);
    const Tensor sums = at::empty({static_cast<int64_t>(splits), count, y.size(1)},
                                  taps.tensor().options().dtype(at::kFloat));
    args.sums = kernels::address(sums);
    const uint32_t type = kernels::code(taps.tensor().scalar_type());
    kWeightStripKernels(plan.kernel(), plan.stride - 1, plan.words)
        .call({.workgroup = static_cast<uint32_t>(lanes * lines * args.workers),
               .type = type,
               .channels_fast = plan.channels_fast,
               .strip = strip,
               .lanes = lanes})
        .read(x.tensor())
        .read(y.tensor())
        .write(sums)
        .dispatch(args, kernels::Grid::linear(args.groups));
    weight_strips::SplitSumArgs sum{};
    sum.sums = args.sums;
    sum.out = kernels::address(taps.tensor());
    sum.channels = divider(y.size(1));
    sum.taps_along = divider(plan.taps);
    sum.results = static_cast<uint32_t>(count * y.size(1));
    sum.splits = static_cast<uint32_t>(splits);
    sum.channel_stride = taps.strides().values[0];
    sum.across_stride = taps.strides().values[plan.across];
    sum.along_stride = taps.strides().values[plan.along];
    weight_strips::conv_depthwise_weight_sum.call({.type = type})
        .read(sums)
        .write(taps.tensor())
        .dispatch(sum, kernels::Grid::linear(ceil_div(sum.results, weight_strips::kSumResults)));
}

}  // namespace

bool is_depthwise(const Tensor& weight, int64_t groups) {
    constexpr int64_t kMaxFilters = 4;
    if (groups <= 1 || weight.size(1) != 1 || weight.size(0) > kMaxFilters * groups ||
        kernels::compute_of(weight.scalar_type()) != kernels::Compute::F32)
        return false;
    // On a software driver strips alone are faster than an implicit GEMM.
    const bool strips = weight.dim() == 4 && weight.size(0) == groups && weight.size(2) == weight.size(3) &&
                        is_known(weight.size(2));
    return strips || uses_shared_memory(runtime::device().info());
}

void depthwise(const Tensor& image, const Tensor& weight, const Tensor* bias, const Tensor& out,
               const ConvParams& axes, bool gradient) {
    const kernels::Image from(image, axes.spatial), to(out, axes.spatial), taps(weight, axes.spatial);
    if (const auto plan = strips_of(from, to, taps, axes, gradient))
        return run_strips(*plan, from, to, taps, bias, axes, gradient);
    const bool channels_fast = to.channels_fast();
    shader::DepthwiseArgs args{};
    args.image = kernels::address(image);
    args.weight = kernels::address(weight);
    args.out = kernels::address(out);
    if (bias != nullptr) {
        args.bias = kernels::address(*bias);
        args.bias_stride = static_cast<uint32_t>(bias->stride(0));
    }
    args.image_strides = from.strides();
    args.out_strides = to.strides();
    args.weight_strides = taps.strides().values;
    sizes_of(from, args.image_size);
    sizes_of(to, args.out_size);
    sizes_of(taps, args.taps);
    for (int axis = 0; axis < 3; ++axis) {
        args.padding[axis] = static_cast<uint32_t>(axes.padding[axis]);
        args.stride[axis] = divider(axes.stride[axis]);
        args.dilation[axis] = divider(axes.dilation[axis]);
    }
    args.multiplier = divider(gradient ? image.size(1) / out.size(1) : out.size(1) / image.size(1));
    // The digits of a result's number, kRows results of an axis in one: neighbours, unless neighbouring
    // threads have these.
    const int axis = channels_fast || to.size(3) == 1 ? 4 : 3;
    const bool apart = !channels_fast && axis == 4;
    const auto rows = static_cast<uint32_t>(ceil_div(to.size(axis), kRows));
    args.index = to.index();
    args.index.digits[apart ? 0 : 1] = FastDivider(rows);
    args.first_step = apart ? 1 : kRows;
    args.row_step = apart ? rows : 1;
    const uint64_t total = uint64_t{to.size(0)} * to.size(1) * to.size(2) * rows * to.size(7 - axis);
    args.total = kernels::group_count(total);
    const bool few = args.taps[0] <= 3 && args.taps[1] <= 5 && args.taps[2] <= 5;
    const uint32_t workgroup = kernels::flat_workgroup();
    auto call = shader::conv_depthwise.call({.workgroup = workgroup,
                                             .type = kernels::code(out.scalar_type()),
                                             .channels_fast = channels_fast,
                                             .has_bias = bias != nullptr,
                                             .gradient = gradient,
                                             .depth = few ? args.taps[0] : 0,
                                             .height = few ? args.taps[1] : 0,
                                             .width = few ? args.taps[2] : 0,
                                             .row_axis = static_cast<uint32_t>(axis - 2)});
    call.read(image).read(weight).write(out);
    if (bias != nullptr) call.read(*bias);
    call.dispatch(args, kernels::flat_grid(total, workgroup));
}

void depthwise_weight(const Tensor& x, const Tensor& y, const Tensor& out, const ConvParams& axes) {
    constexpr uint64_t kGroups = 1024, kMinPositionsPerSplit = 2048;
    if (y.numel() == 0) {
        out.zero_();
        return;
    }
    const kernels::Image from(x, axes.spatial), gradient(y, axes.spatial), taps(out, axes.spatial);
    if (const auto plan = strips_of(from, gradient, taps, axes, false))
        return run_weight_strips(*plan, from, gradient, taps, axes);
    const uint32_t lanes = from.channels_fast() && gradient.channels_fast() ? 32 : 1;
    shader::DepthwiseWeightArgs args{};
    args.x = kernels::address(x);
    args.y = kernels::address(y);
    args.x_strides = from.strides();
    args.y_strides = gradient.strides();
    args.depth = FastDivider(gradient.size(2));
    args.height = FastDivider(gradient.size(3));
    args.width = FastDivider(gradient.size(4));
    args.channels = gradient.size(1);
    args.multiplier = divider(y.size(1) / x.size(1));
    args.tap_height = FastDivider(taps.size(3));
    args.tap_width = FastDivider(taps.size(4));
    args.taps = taps.size(2) * taps.size(3) * taps.size(4);
    sizes_of(from, args.x_size);
    for (int axis = 0; axis < 3; ++axis) {
        args.padding[axis] = static_cast<uint32_t>(axes.padding[axis]);
        args.stride[axis] = static_cast<uint32_t>(axes.stride[axis]);
        args.dilation[axis] = static_cast<uint32_t>(axes.dilation[axis]);
    }
    const uint64_t blocks = ceil_div(args.channels, lanes), chunks = ceil_div(args.taps, kTaps);
    args.blocks = divider(blocks);
    args.chunks = divider(chunks);
    args.positions = kernels::group_count(static_cast<uint64_t>(y.numel()) / args.channels);
    const uint64_t wanted = std::clamp<uint64_t>(
        kGroups / (blocks * chunks), 1, std::max<uint64_t>(1, args.positions / kMinPositionsPerSplit));
    args.positions_per_split = static_cast<uint32_t>(ceil_div(args.positions, wanted));
    const auto splits = static_cast<int64_t>(ceil_div(args.positions, args.positions_per_split));
    args.groups = kernels::group_count(blocks * chunks * splits);
    const Tensor sums = at::empty({splits, args.channels, args.taps}, out.options().dtype(at::kFloat));
    args.out = kernels::address(sums);
    shader::conv_depthwise_weight
        .call({.workgroup = kThreads, .type = kernels::code(x.scalar_type()), .lanes = lanes})
        .read(x)
        .read(y)
        .write(sums)
        .dispatch(args, kernels::Grid::linear(args.groups));
    out.copy_((splits == 1 ? sums : at::sum(sums, 0)).view(out.sizes()));
}

}  // namespace anymps::ops
