#include "ops/conv/depthwise.h"

#include <anymps/shaders/conv/conv_depthwise.h>

#include <algorithm>

#include "gemm/tiles.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/conv/depthwise_strips.h"

namespace anymps::ops {
namespace {

using kernels::ceil_div;
using kernels::FastDivider;
namespace shader = shaders::conv_depthwise;

using shader::kRows;
using shader::kTaps;
using shader::kThreads;

FastDivider divider(uint64_t value) {
    return FastDivider(static_cast<uint32_t>(value));
}

// Coordinates of a result's number in the order of memory.
auto result_index(const DepthwiseImage& to) {
    decltype(shader::DepthwiseArgs::index) index;
    const int first[4] = {4, 3, 2, 1}, last[4] = {1, 4, 3, 2};
    for (int i = 0; i < 4; ++i) index.sizes[i] = FastDivider(to.sizes[(to.channels_fast ? last : first)[i]]);
    return index;
}

void add_image(PlanBuilder& builder, const DepthwiseOperands& o, bool gradient) {
    const ConvProblem& p = builder.problem;
    const auto& [from, to, taps] = o;
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
    // The coordinates of a result's number, kRows results of an axis in one: neighbours, unless neighbouring
    // threads have these.
    const int axis = to.channels_fast || to.sizes[3] == 1 ? 4 : 3;
    const bool apart = !to.channels_fast && axis == 4;
    const auto rows = static_cast<uint32_t>(ceil_div(to.sizes[axis], kRows));
    args.index = result_index(to);
    args.index.sizes[apart ? 0 : 1] = FastDivider(rows);
    args.first_step = apart ? 1 : kRows;
    args.row_step = apart ? rows : 1;
    const uint64_t total = uint64_t{to.sizes[0]} * to.sizes[1] * to.sizes[2] * rows * to.sizes[7 - axis];
    args.total = kernels::group_count(total);
    const bool few = args.taps[0] <= 3 && args.taps[1] <= 5 && args.taps[2] <= 5;
    const uint32_t workgroup = builder.device.flat_workgroup();
    PassWriter pass(builder, shader::conv_depthwise,
                    {.workgroup = workgroup,
                     .type = kernels::code(to.memory.type),
                     .channels_fast = to.channels_fast,
                     .has_bias = p.bias.defined(),
                     .gradient = gradient,
                     .depth = few ? args.taps[0] : 0,
                     .height = few ? args.taps[1] : 0,
                     .width = few ? args.taps[2] : 0,
                     .row_axis = static_cast<uint32_t>(axis - 2)});
    pass.address(args.image, from.memory).address(args.weight, taps.memory).address(args.out, to.memory);
    pass.read(from.memory).read(taps.memory).write(to.memory).work(depthwise_operations(p), {});
    if (p.bias.defined()) pass.address(args.bias, p.bias).read(p.bias);
    pass.dispatch(args, runtime::Grid::linear(ceil_div(total, workgroup)));
}

void add_weight(PlanBuilder& builder, const DepthwiseOperands& o) {
    constexpr uint64_t kGroups = 1024, kMinPositionsPerSplit = 2048;
    const ConvProblem& p = builder.problem;
    const auto& [x, y, taps] = o;
    const uint32_t lanes = x.channels_fast && y.channels_fast ? 32 : 1;
    shader::DepthwiseWeightArgs args{};
    args.x_strides.values = x.strides;
    args.y_strides.values = y.strides;
    args.depth = FastDivider(y.sizes[2]);
    args.height = FastDivider(y.sizes[3]);
    args.width = FastDivider(y.sizes[4]);
    args.channels = y.sizes[1];
    args.multiplier = divider(y.sizes[1] / x.sizes[1]);
    args.tap_height = FastDivider(taps.sizes[3]);
    args.tap_width = FastDivider(taps.sizes[4]);
    args.taps = taps.sizes[2] * taps.sizes[3] * taps.sizes[4];
    args.x_size = x.spatial();
    for (int axis = 0; axis < 3; ++axis) {
        args.padding[axis] = static_cast<uint32_t>(p.params.padding[axis]);
        args.stride[axis] = static_cast<uint32_t>(p.params.stride[axis]);
        args.dilation[axis] = static_cast<uint32_t>(p.params.dilation[axis]);
    }
    const uint64_t blocks = ceil_div(args.channels, lanes), chunks = ceil_div(args.taps, kTaps);
    args.blocks = divider(blocks);
    args.chunks = divider(chunks);
    args.positions = kernels::group_count(static_cast<uint64_t>(p.y.numel(p.groups)) / args.channels);
    const uint64_t wanted = std::clamp<uint64_t>(
        kGroups / (blocks * chunks), 1, std::max<uint64_t>(1, args.positions / kMinPositionsPerSplit));
    args.positions_per_split = static_cast<uint32_t>(ceil_div(args.positions, wanted));
    const auto splits = static_cast<int64_t>(ceil_div(args.positions, args.positions_per_split));
    args.groups = kernels::group_count(blocks * chunks * splits);
    const Memory sums = builder.temporary({splits, args.channels, args.taps}, DType::F32);
    PassWriter pass(builder, shader::conv_depthwise_weight,
                    {.workgroup = kThreads, .type = kernels::code(x.memory.type), .lanes = lanes});
    pass.address(args.x, x.memory).address(args.y, y.memory).address(args.out, sums);
    pass.read(x.memory).read(y.memory).write(sums).work(depthwise_operations(p), {});
    pass.dispatch(args, runtime::Grid::linear(args.groups));
    builder.add(Pass::Kind::SumSplits, {{sums.buffer, false}, {taps.memory.buffer, true}});
}

}  // namespace

bool is_depthwise(const ConvProblem& p, Direction::Kind kind, const ConvDevice& device) {
    constexpr int64_t kMaxFilters = 4;
    if (p.groups <= 1 || p.w.channels != 1 || p.w.outer > kMaxFilters ||
        kernels::compute_of(p.w.memory.type) != kernels::Compute::F32)
        return false;
    if (gemm::uses_shared_memory(device.info)) return true;
    // On a software driver strips alone are faster than an implicit GEMM.
    return p.w.sizes[1] == p.w.sizes[2] && strips_of(DepthwiseOperands(p, kind), p.params, kind);
}

ConvTensor add_depthwise(PlanBuilder& builder, const Direction& d, const ConvTensor&) {
    const ConvProblem& p = builder.problem;
    const bool wgrad = d.kind == Direction::Kind::Wgrad, dgrad = d.kind == Direction::Kind::Dgrad;
    if (wgrad && p.y.numel(p.groups) == 0) {
        builder.add(Pass::Kind::Zero, {{d.result.memory.buffer, true}});
        return d.first;
    }
    const DepthwiseOperands operands(p, d.kind);
    const auto strips = strips_of(operands, p.params, d.kind);
    if (strips && wgrad)
        add_weight_strips(builder, *strips, operands);
    else if (strips)
        add_image_strips(builder, *strips, operands, dgrad);
    else if (wgrad)
        add_weight(builder, operands);
    else
        add_image(builder, operands, dgrad);
    return d.first;
}

}  // namespace anymps::ops
