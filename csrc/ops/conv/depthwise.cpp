#include "ops/conv/depthwise.h"

#include <anymps/shaders/conv_depthwise.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>

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

using shader::kRows;
using shader::kTaps;
using shader::kThreads;

void sizes_of(const kernels::Image& image, std::array<uint32_t, 3>& sizes) {
    for (int axis = 0; axis < 3; ++axis) sizes[axis] = image.size(2 + axis);
}

FastDivider divider(uint64_t value) {
    return FastDivider(static_cast<uint32_t>(value));
}

}  // namespace

bool is_depthwise(const Tensor& weight, int64_t groups) {
    constexpr int64_t kMaxFilters = 4;
    return groups > 1 && weight.size(1) == 1 && weight.size(0) <= kMaxFilters * groups &&
           kernels::compute_of(weight.scalar_type()) == kernels::Compute::F32 &&
           uses_shared_memory(runtime::device().info());
}

void depthwise(const Tensor& image, const Tensor& weight, const Tensor* bias, const Tensor& out,
               const ConvParams& axes, bool gradient) {
    const kernels::Image from(image, axes.spatial), to(out, axes.spatial), taps(weight, axes.spatial);
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
    // The digits of a result's number, kRows results of an axis in one.
    const uint32_t rows = ceil_div(to.size(channels_fast ? 4 : 3), kRows);
    args.index = to.index();
    args.index.digits[1] = FastDivider(rows);
    const uint64_t total =
        static_cast<uint64_t>(to.size(0)) * to.size(1) * to.size(2) * rows * to.size(channels_fast ? 3 : 4);
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
                                             .width = few ? args.taps[2] : 0});
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
