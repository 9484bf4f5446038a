#include "ops/conv/depthwise_strips.h"

#include <anymps/shaders/conv/conv_depthwise_strips.h>
#include <anymps/shaders/conv/conv_depthwise_weight.h>

#include <algorithm>
#include <limits>

#include "gemm/tiles.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/conv/text.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;
using kernels::FastDivider;
using shaders::conv_strip::StripAxis;
using shaders::conv_strip::StripLayout;
namespace strips = shaders::conv_depthwise_strips;
namespace weight_strips = shaders::conv_depthwise_weight;

constexpr kernels::KernelFamily kStripKernels(strips::kernels_with<strips::StripArgs>,
                                              {"conv_depthwise_3", "conv_depthwise_5", "conv_depthwise_7"},
                                              {"_stride1", "_stride2", "_stride2_gradient"}, {"", "_words"});
constexpr kernels::KernelFamily kWeightStripKernels(
    weight_strips::kernels_with<weight_strips::StripWeightArgs>,
    {"conv_depthwise_weight_3", "conv_depthwise_weight_5", "conv_depthwise_weight_7"},
    {"_stride1", "_stride2"}, {"", "_words"});

uint32_t narrow(int64_t value) {
    check(value >= 0 && value <= std::numeric_limits<int32_t>::max(), "a size or stride of ", value,
          " elements is too large for this operator on the mps device");
    return static_cast<uint32_t>(value);
}

FastDivider divider(uint64_t value) {
    return FastDivider(static_cast<uint32_t>(value));
}

DepthwiseImage image_of(const ConvTensor& t, int64_t batch, int64_t channels, int64_t groups) {
    DepthwiseImage image{t.memory};
    const auto set = [&](int i, int64_t size, int64_t stride) {
        image.sizes[i] = narrow(size);
        image.strides[i] = size > 1 ? narrow(stride) : 0;
    };
    set(0, batch, t.outer_stride);
    set(1, channels, t.channel_stride);
    for (int axis = 0; axis < 3; ++axis) set(2 + axis, t.sizes[axis], t.strides[axis]);
    image.channels_fast = channels > 1 && t.channel_stride == 1 && !t.is_contiguous(groups);
    return image;
}

// Threads of a workgroup, at most. Software drivers take long for barriers of many.
uint32_t max_workgroup(const ConvDevice& device) {
    return gemm::uses_shared_memory(device.info) ? 256 : 64;
}

// Whether four channels are one load.
bool is_wide(const DepthwiseImage& image) {
    const auto item = static_cast<uint64_t>(image.memory.element_size());
    bool wide = image.channels_fast && image.sizes[1] % 4 == 0 && image.memory.is_aligned(4 * item);
    for (const int axis : {0, 3, 4}) wide = wide && image.strides[axis] % 4 == 0;
    return wide;
}

// Offsets along an axis are 32 bits of bytes.
bool is_near(const DepthwiseImage& image) {
    const auto item = static_cast<uint64_t>(image.memory.element_size());
    for (const int axis : {3, 4})
        if (item * image.strides[axis] * image.sizes[axis] > UINT32_MAX) return false;
    return true;
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
StripAxis strip_axis(int axis, const DepthwiseOperands& o, const ConvParams& params, bool flipped) {
    const auto item = static_cast<uint32_t>(o.to.memory.element_size());
    StripAxis result{};
    result.image_size = o.from.sizes[axis];
    result.out_size = o.to.sizes[axis];
    result.image_step = o.from.strides[axis] * item;
    result.out_step = o.to.strides[axis] * item;
    result.taps = o.taps.sizes[axis];
    result.stride = static_cast<uint32_t>(params.stride[axis - 2]);
    result.dilation = static_cast<uint32_t>(params.dilation[axis - 2]);
    result.padding = static_cast<int32_t>(params.padding[axis - 2]);
    result.weight_step = static_cast<int32_t>(o.taps.strides[axis]);
    if (flipped) {
        result.padding = static_cast<int32_t>(result.dilation * (result.taps - 1)) - result.padding;
        result.weight_step = -result.weight_step;
    }
    return result;
}

// How results are cut into strips, and strips into workgroups.
struct Cut {
    uint32_t strip;
    uint32_t extra;  // results before the first one that the first strip has
    uint32_t lanes;  // 0, or values of channels in a block
    bool flipped;
};

StripLayout strip_layout(const Strips& plan, const DepthwiseOperands& o, const ConvParams& params,
                         const Cut& cut) {
    StripLayout result{};
    result.image_batch = o.from.strides[0];
    result.image_channel = o.from.strides[1];
    result.out_batch = o.to.strides[0];
    result.out_channel = o.to.strides[1];
    result.channels = o.to.sizes[1];
    result.along = strip_axis(plan.along, o, params, cut.flipped);
    result.across = strip_axis(plan.across, o, params, cut.flipped);
    const uint32_t spread = result.along.dilation, lanes = cut.lanes;
    const auto count =
        static_cast<uint32_t>(ceil_div(o.to.sizes[plan.along] + cut.extra, uint64_t{cut.strip} * spread)) *
        spread;
    result.blocks =
        divider(lanes == 0 ? 1 : ceil_div(ceil_div(result.channels, plan.channels_a_thread()), lanes));
    result.channel_size = divider(result.channels);
    result.across_size = divider(o.to.sizes[plan.across]);
    result.strip_size = divider(count);
    result.spread = divider(spread);
    result.total = kernels::group_count(uint64_t{count} * o.to.sizes[plan.across] * o.to.sizes[0] *
                                        (lanes == 0 ? result.channels : 1));
    return result;
}

}  // namespace

bool DepthwiseImage::is_empty() const {
    return std::ranges::find(sizes, 0u) != sizes.end();
}

DepthwiseImage activation_image(const ConvTensor& t, int64_t groups) {
    return image_of(t, t.outer, t.channels * groups, groups);
}

DepthwiseImage filter_image(const ConvTensor& t, int64_t groups) {
    return image_of(t, t.outer * groups, t.channels, groups);
}

DepthwiseOperands::DepthwiseOperands(const ConvProblem& p, Direction::Kind kind)
    : from(activation_image(kind == Direction::Kind::Dgrad ? p.y : p.x, p.groups)),
      to(activation_image(kind == Direction::Kind::Wgrad ? p.y : p.image_out, p.groups)),
      taps(filter_image(kind == Direction::Kind::Wgrad ? p.filter_out : p.w, p.groups)) {}

std::optional<Strips> strips_of(const DepthwiseOperands& o, const ConvParams& params, Direction::Kind kind) {
    const auto& [from, to, taps] = o;
    Strips result{};
    result.channels_fast = to.channels_fast;
    result.along = result.channels_fast ? 4 : 3;
    result.across = 7 - result.along;
    result.taps = taps.sizes[result.along];
    const Dim3 &stride = params.stride, &dilation = params.dilation;
    const int along = result.along - 2, across = result.across - 2;
    result.stride = static_cast<uint32_t>(std::min<int64_t>(stride[along], 3));
    result.dilation = static_cast<uint32_t>(dilation[along]);
    if (from.is_empty()) return {};
    const bool flat = from.sizes[2] == 1 && to.sizes[2] == 1 && taps.sizes[2] == 1;
    const bool known = (result.taps == 3 || result.taps == 5 || result.taps == 7) && result.stride <= 2;
    if (!flat || !known || from.sizes[1] != to.sizes[1] || taps.sizes[result.across] > result.taps) return {};
    if ((result.stride > 1 && dilation[along] != 1) || !is_near(from) || !is_near(to)) return {};
    if (kind == Direction::Kind::Dgrad &&
        (stride[across] != stride[along] || (result.stride == 2 && dilation[across] != 1)))
        return {};
    result.words = is_wide(from) && is_wide(to);
    return result;
}

double depthwise_operations(const ConvProblem& p) {
    return 2.0 * static_cast<double>(p.y.numel(p.groups)) * static_cast<double>(p.w.positions());
}

void add_image_strips(PlanBuilder& builder, const Strips& plan, const DepthwiseOperands& o, bool gradient) {
    constexpr uint64_t kGroupsAUnit = 8, kMaxRounds = 8;
    const ConvProblem& p = builder.problem;
    const auto& [from, to, taps] = o;
    const bool flipped = gradient && plan.stride == 1, strided = gradient && plan.stride == 2;
    // Strips of a strided gradient begin where the first tap is on a position of y.
    const uint32_t extra = strided ? p.params.padding[plan.along - 2] & 1 : 0;
    const uint32_t strip =
        strip_size(ceil_div(to.sizes[plan.along] + extra, plan.dilation), plan.taps, strided);
    const uint32_t lanes = plan.words ? lanes_of(to.sizes[1] / 4) : 0;
    strips::StripArgs args{};
    args.layout = strip_layout(plan, o, p.params, {strip, extra, lanes, flipped});
    args.weight_channel = taps.strides[0];
    args.taps = divider(taps.sizes[3] * taps.sizes[4]);
    args.bias_stride = static_cast<uint32_t>(p.bias_stride);
    int64_t first_tap = 0;
    if (flipped)
        for (const int axis : {3, 4}) first_tap += int64_t{taps.strides[axis]} * (taps.sizes[axis] - 1);
    const uint32_t workgroup = max_workgroup(builder.device);
    const uint64_t slots = workgroup / std::max(lanes, 1u), blocks = args.layout.blocks.divisor;
    // A workgroup reads the taps of its channels first: the more strips, the less that counts.
    const uint64_t groups = kGroupsAUnit * builder.device.info.compute_units();
    args.rounds =
        plan.words ? std::clamp<uint64_t>(args.layout.total * blocks / (slots * groups), 1, kMaxRounds) : 1;
    PassWriter pass(builder, kStripKernels(plan.kernel(), strided ? 2 : plan.stride - 1, plan.words),
                    {.workgroup = workgroup,
                     .type = kernels::code(to.memory.type),
                     .channels_fast = plan.channels_fast,
                     .strip = strip,
                     .lanes = lanes,
                     .has_bias = p.bias.defined()});
    pass.address(args.image, from.memory).address(args.weight, taps.memory, first_tap);
    pass.address(args.out, to.memory).read(from.memory).read(taps.memory).write(to.memory);
    pass.work(depthwise_operations(p), {});
    if (p.bias.defined()) pass.address(args.bias, p.bias).read(p.bias);
    pass.dispatch(args, runtime::Grid::linear(blocks * ceil_div(args.layout.total, slots * args.rounds)));
}

void add_weight_strips(PlanBuilder& builder, const Strips& plan, const DepthwiseOperands& o) {
    constexpr uint64_t kGroupsAUnit = 4, kMinRounds = 4;
    const auto& [x, y, taps] = o;
    const vulkan::DeviceInfo& info = builder.device.info;
    const uint32_t strip = strip_size(ceil_div(y.sizes[plan.along], plan.dilation), plan.taps, false);
    // Software drivers gather one element after another in any case, and take long for a workgroup.
    const bool side_by_side = plan.channels_fast || !gemm::uses_shared_memory(info);
    const uint32_t lanes = plan.words ? lanes_of(y.sizes[1] / 4) : side_by_side ? lanes_of(y.sizes[1]) : 1;
    weight_strips::StripWeightArgs args{};
    args.layout = strip_layout(plan, o, builder.problem.params, {strip, 0, lanes, false});
    // What no result reaches is not multiplied, not even by zero.
    StripAxis& along = args.layout.along;
    const int64_t reached = int64_t{along.out_size - 1} * along.stride +
                            int64_t{along.taps - 1} * along.dilation + 1 - along.padding;
    along.image_size = static_cast<uint32_t>(std::clamp<int64_t>(reached, 1, along.image_size));
    const uint64_t lines = args.layout.across.taps, blocks = args.layout.blocks.divisor,
                   total = args.layout.total;
    args.workers =
        std::max<uint32_t>(1, static_cast<uint32_t>(max_workgroup(builder.device) / (lanes * lines)));
    const uint64_t groups = kGroupsAUnit * info.compute_units();
    const uint64_t wanted =
        std::clamp<uint64_t>(groups / blocks, 1, std::max<uint64_t>(1, total / (kMinRounds * args.workers)));
    args.strips_per_split = static_cast<uint32_t>(ceil_div(total, wanted));
    const uint64_t splits = ceil_div(total, args.strips_per_split);
    args.groups = kernels::group_count(blocks * splits);
    const auto count = static_cast<int64_t>(lines * plan.taps);
    const Memory sums = builder.temporary({static_cast<int64_t>(splits), count, y.sizes[1]}, DType::F32);
    const uint32_t type = kernels::code(taps.memory.type);
    PassWriter pass(builder, kWeightStripKernels(plan.kernel(), plan.stride - 1, plan.words),
                    {.workgroup = static_cast<uint32_t>(lanes * lines * args.workers),
                     .type = type,
                     .channels_fast = plan.channels_fast,
                     .strip = strip,
                     .lanes = lanes});
    pass.address(args.x, x.memory).address(args.y, y.memory).address(args.sums, sums);
    pass.read(x.memory).read(y.memory).write(sums);
    pass.work(depthwise_operations(builder.problem), {});
    pass.dispatch(args, runtime::Grid::linear(args.groups));
    weight_strips::SplitSumArgs sum{};
    sum.channels = divider(y.sizes[1]);
    sum.taps_along = divider(plan.taps);
    sum.results = static_cast<uint32_t>(count * y.sizes[1]);
    sum.splits = static_cast<uint32_t>(splits);
    sum.channel_stride = taps.strides[0];
    sum.across_stride = taps.strides[plan.across];
    sum.along_stride = taps.strides[plan.along];
    PassWriter add(builder, weight_strips::conv_depthwise_weight_sum, {.type = type});
    add.address(sum.sums, sums).address(sum.out, taps.memory).read(sums).write(taps.memory);
    add.dispatch(sum, runtime::Grid::linear(ceil_div(sum.results, weight_strips::kSumResults)));
}

}  // namespace anymps::ops
