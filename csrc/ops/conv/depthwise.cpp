#include "ops/conv/depthwise.h"

#include <anymps/shaders/conv_depthwise.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/matmul/tiles.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;
using kernels::FastDivider;
namespace shader = shaders::conv_depthwise;

using shader::kRows;
using shader::kTaps;
using shader::kThreads;

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(), "a size or stride of ", value,
                " elements is too large for this operator on the mps device");
    return static_cast<uint32_t>(value);
}

FastDivider divider(uint64_t value) {
    return FastDivider(static_cast<uint32_t>(value));
}

// Batch, channel, depth, height, width; strides are 0 where the size is 1.
struct Image {
    std::array<uint32_t, 5> sizes, strides;

    Image(const ConvTensor& t, int64_t batch, int64_t channels) {
        const auto set = [&](int i, int64_t size, int64_t stride) {
            sizes[i] = narrow(size);
            strides[i] = size > 1 ? narrow(stride) : 0;
        };
        set(0, batch, t.outer_stride);
        set(1, channels, t.channel_stride);
        for (int axis = 0; axis < 3; ++axis) set(2 + axis, t.sizes[axis], t.strides[axis]);
    }
    std::array<uint32_t, 3> spatial() const { return {sizes[2], sizes[3], sizes[4]}; }
};

Image activation(const ConvTensor& t, int64_t groups) {
    return {t, t.outer, t.channels * groups};
}

Image filter(const ConvTensor& t, int64_t groups) {
    return {t, t.outer * groups, t.channels};
}

bool channels_fast(const ConvTensor& t, int64_t groups) {
    return t.channels * groups > 1 && t.channel_stride == 1 && !t.is_contiguous(groups);
}

// Coordinates of a result's number in the order of memory, kRows results of an axis in one.
auto result_index(const Image& to, bool channels_last, uint32_t rows) {
    decltype(shader::DepthwiseArgs::index) index;
    const int first[4] = {4, 3, 2, 1}, last[4] = {1, 4, 3, 2};
    for (int i = 0; i < 4; ++i) index.digits[i] = FastDivider(to.sizes[(channels_last ? last : first)[i]]);
    index.digits[1] = FastDivider(rows);
    return index;
}

void add_image(PlanBuilder& builder, const ConvTensor& image, bool gradient) {
    const ConvProblem& p = builder.problem;
    const ConvTensor& out = p.image_out;
    const Image from = activation(image, p.groups), to = activation(out, p.groups),
                taps = filter(p.w, p.groups);
    const bool last = channels_fast(out, p.groups);
    shader::DepthwiseArgs args{};
    args.bias_stride = static_cast<uint32_t>(p.bias_stride);
    args.image_strides.values = from.strides;
    args.out_strides.values = to.strides;
    args.weight_strides = taps.strides;
    args.image_size = from.spatial();
    args.out_size = to.spatial();
    args.taps = taps.spatial();
    for (int axis = 0; axis < 3; ++axis) {
        args.padding[axis] = static_cast<uint32_t>(p.params.padding[axis]);
        args.stride[axis] = divider(p.params.stride[axis]);
        args.dilation[axis] = divider(p.params.dilation[axis]);
    }
    args.multiplier = divider(gradient ? from.sizes[1] / to.sizes[1] : to.sizes[1] / from.sizes[1]);
    const uint32_t rows = ceil_div(to.sizes[last ? 4 : 3], kRows);
    args.index = result_index(to, last, rows);
    const uint64_t total = uint64_t{to.sizes[0]} * to.sizes[1] * to.sizes[2] * rows * to.sizes[last ? 3 : 4];
    args.total = kernels::group_count(total);
    const bool few = args.taps[0] <= 3 && args.taps[1] <= 5 && args.taps[2] <= 5;
    const uint32_t workgroup = kernels::flat_workgroup();
    PassWriter pass(builder, shader::conv_depthwise,
                    {.workgroup = workgroup,
                     .type = kernels::code(out.memory.type),
                     .channels_fast = last,
                     .has_bias = p.bias.defined(),
                     .gradient = gradient,
                     .depth = few ? args.taps[0] : 0,
                     .height = few ? args.taps[1] : 0,
                     .width = few ? args.taps[2] : 0});
    pass.address(args.image, image.memory).address(args.weight, p.w.memory).address(args.out, out.memory);
    pass.read(image.memory).read(p.w.memory).write(out.memory);
    if (p.bias.defined()) pass.address(args.bias, p.bias).read(p.bias);
    pass.dispatch(args, kernels::flat_grid(total, workgroup));
}

void add_weight(PlanBuilder& builder) {
    constexpr uint64_t kGroups = 1024, kMinPositionsPerSplit = 2048;
    const ConvProblem& p = builder.problem;
    const ConvTensor &x = p.x, &y = p.y, &out = p.filter_out;
    if (y.numel(p.groups) == 0) return builder.add(Pass::Kind::Zero, {{out.memory.buffer, true}});
    const Image from = activation(x, p.groups), gradient = activation(y, p.groups),
                taps = filter(out, p.groups);
    const uint32_t lanes = channels_fast(x, p.groups) && channels_fast(y, p.groups) ? 32 : 1;
    shader::DepthwiseWeightArgs args{};
    args.x_strides.values = from.strides;
    args.y_strides.values = gradient.strides;
    args.depth = FastDivider(gradient.sizes[2]);
    args.height = FastDivider(gradient.sizes[3]);
    args.width = FastDivider(gradient.sizes[4]);
    args.channels = gradient.sizes[1];
    args.multiplier = divider(gradient.sizes[1] / from.sizes[1]);
    args.tap_height = FastDivider(taps.sizes[3]);
    args.tap_width = FastDivider(taps.sizes[4]);
    args.taps = taps.sizes[2] * taps.sizes[3] * taps.sizes[4];
    args.x_size = from.spatial();
    for (int axis = 0; axis < 3; ++axis) {
        args.padding[axis] = static_cast<uint32_t>(p.params.padding[axis]);
        args.stride[axis] = static_cast<uint32_t>(p.params.stride[axis]);
        args.dilation[axis] = static_cast<uint32_t>(p.params.dilation[axis]);
    }
    const uint64_t blocks = ceil_div(args.channels, lanes), chunks = ceil_div(args.taps, kTaps);
    args.blocks = divider(blocks);
    args.chunks = divider(chunks);
    args.positions = kernels::group_count(static_cast<uint64_t>(y.numel(p.groups)) / args.channels);
    const uint64_t wanted = std::clamp<uint64_t>(
        kGroups / (blocks * chunks), 1, std::max<uint64_t>(1, args.positions / kMinPositionsPerSplit));
    args.positions_per_split = static_cast<uint32_t>(ceil_div(args.positions, wanted));
    const auto splits = static_cast<int64_t>(ceil_div(args.positions, args.positions_per_split));
    args.groups = kernels::group_count(blocks * chunks * splits);
    const Memory sums = builder.temporary({splits, args.channels, args.taps}, at::kFloat);
    PassWriter pass(builder, shader::conv_depthwise_weight,
                    {.workgroup = kThreads, .type = kernels::code(x.memory.type), .lanes = lanes});
    pass.address(args.x, x.memory).address(args.y, y.memory).address(args.out, sums);
    pass.read(x.memory).read(y.memory).write(sums).dispatch(args, kernels::Grid::linear(args.groups));
    builder.add(Pass::Kind::SumSplits, {{sums.buffer, false}, {out.memory.buffer, true}});
}

}  // namespace

bool is_depthwise(const ConvProblem& p, const ConvDevice& device) {
    constexpr int64_t kMaxFilters = 4;
    return p.groups > 1 && p.w.channels == 1 && p.w.outer <= kMaxFilters &&
           kernels::compute_of(p.w.memory.type) == kernels::Compute::F32 && uses_shared_memory(device.info);
}

ConvTensor add_depthwise(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    if (d.kind == Direction::Kind::Wgrad)
        add_weight(builder);
    else
        add_image(builder, d.kind == Direction::Kind::Fprop ? builder.problem.x : builder.problem.y,
                  d.kind == Direction::Kind::Dgrad);
    return d.first;
}

}  // namespace anymps::ops
