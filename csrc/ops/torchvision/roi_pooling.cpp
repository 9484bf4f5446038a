// torchvision's roi_align, roi_pool, ps_roi_align and ps_roi_pool with their gradients.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <anymps/shaders/torchvision/roi_pooling.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "ops/indexing/indexed_copy.h"
#include "ops/same_device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::roi_pooling;

struct Pooling {
    shader::RoiKernel kernel;
    double scale;
    int64_t sampling_ratio = 0;
    bool aligned = false, position_sensitive = false;
};

void check(const Tensor& input, const Tensor& rois, const char* name) {
    TORCH_CHECK(rois.dim() == 2 && rois.size(1) == 5, "Tensor rois should have shape as Tensor[K, 5]");
    TORCH_CHECK(input.scalar_type() == rois.scalar_type(), "input should have the same type as rois");
    kernels::check_floating(input.scalar_type(), name);
}

// input and output, or their gradients; input is written where it is `backward`.
void launch(const Pooling& pooling, const Tensor& input, const Tensor& rois, const Tensor& output,
            const Tensor& indices, bool backward) {
    check_same_device(pooling.kernel.name.data(), {{"input", input}, {"rois", rois}, {"output", output}});
    if (output.numel() == 0) return;
    TORCH_CHECK(std::max(input.numel(), output.numel()) <= std::numeric_limits<int32_t>::max(),
                pooling.kernel.name, " on MPS: more than 2^31 - 1 elements");
    shader::RoiArgs args{kernels::address(input), kernels::address(rois), kernels::address(output),
                         kernels::address_or_0(indices)};
    std::copy_n(input.strides().begin(), 4, args.input_strides.begin());
    std::copy_n(output.strides().begin(), 4, args.output_strides.begin());
    std::copy_n(rois.strides().begin(), 2, args.roi_strides.begin());
    args.images = static_cast<uint32_t>(input.size(0));
    args.channels = static_cast<uint32_t>(input.size(1));
    args.regions = static_cast<uint32_t>(output.size(0));
    args.out_channels = static_cast<uint32_t>(output.size(1));
    for (int axis = 0; axis < 2; ++axis) {
        args.size[axis] = static_cast<uint32_t>(input.size(2 + axis));
        args.bins[axis] = static_cast<uint32_t>(output.size(2 + axis));
    }
    args.scale = static_cast<float>(pooling.scale);
    args.sampling_ratio = static_cast<int32_t>(pooling.sampling_ratio);
    const bool ordered = backward && at::globalContext().deterministicAlgorithms();
    args.threads = ordered ? args.out_channels : static_cast<uint32_t>(output.numel());
    args.span = static_cast<uint32_t>(output.numel()) / args.threads;
    const uint32_t workgroup = kernels::flat_workgroup();
    auto call = pooling.kernel.call({.workgroup = workgroup,
                                     .type = kernels::code(rois.scalar_type()),
                                     .aligned = pooling.aligned,
                                     .position_sensitive = pooling.position_sensitive,
                                     .deterministic = ordered});
    call.read(rois);
    if (backward)
        call.read(output).write(input);
    else
        call.read(input).write(output).write(indices);
    call.dispatch(args, kernels::flat_grid(args.threads));
}

Tensor pooled(const Pooling& pooling, const Tensor& input, const Tensor& rois, int64_t height, int64_t width,
              const Tensor& indices) {
    const int64_t channels = pooling.position_sensitive ? input.size(1) / (height * width) : input.size(1);
    const Tensor output = at::empty({rois.size(0), channels, height, width}, input.options());
    launch(pooling, input, rois, output, indices, false);
    return output;
}

// Gradients of overlapping regions are added up in float, in order with deterministic algorithms.
Tensor backward(const Pooling& pooling, const Tensor& grad, const Tensor& rois, at::IntArrayRef input_sizes) {
    TORCH_CHECK(grad.scalar_type() == rois.scalar_type(), "grad should have the same type as rois");
    const Tensor sum = at::zeros(input_sizes, grad.options().dtype(at::kFloat));
    launch(pooling, sum, rois, grad, Tensor(), true);
    return sum.to(grad.scalar_type());
}

Tensor empty_indices(const Tensor& input, const Tensor& rois, int64_t channels, int64_t height,
                     int64_t width) {
    return at::empty({rois.size(0), channels, height, width}, input.options().dtype(at::kInt));
}

int64_t bin_channels(const Tensor& input, int64_t height, int64_t width) {
    TORCH_CHECK(input.size(1) % (height * width) == 0,
                "input channels must be a multiple of pooling height * pooling width");
    return input.size(1) / (height * width);
}

// input [N, C, H, W], rois [K, 5] of (image, x1, y1, x2, y2) -> [K, C, pooled_height, pooled_width].
Tensor roi_align(const Tensor& input, const Tensor& rois, double spatial_scale, int64_t pooled_height,
                 int64_t pooled_width, int64_t sampling_ratio, bool aligned) {
    check(input, rois, "roi_align_forward_kernel");
    return pooled({shader::roi_align, spatial_scale, sampling_ratio, aligned}, input, rois, pooled_height,
                  pooled_width, Tensor());
}

Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale, int64_t pooled_height,
                          int64_t pooled_width, int64_t batch_size, int64_t channels, int64_t height,
                          int64_t width, int64_t sampling_ratio, bool aligned) {
    return backward({shader::roi_align_backward, spatial_scale, sampling_ratio, aligned}, grad, rois,
                    {batch_size, channels, height, width});
}

std::tuple<Tensor, Tensor> roi_pool(const Tensor& input, const Tensor& rois, double spatial_scale,
                                    int64_t pooled_height, int64_t pooled_width) {
    check(input, rois, "roi_pool_forward_kernel");
    const Tensor argmax = empty_indices(input, rois, input.size(1), pooled_height, pooled_width);
    return {pooled({shader::roi_pool, spatial_scale}, input, rois, pooled_height, pooled_width, argmax),
            argmax};
}

Tensor roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor& argmax, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width, int64_t batch_size, int64_t channels,
                         int64_t height, int64_t width) {
    TORCH_CHECK(grad.scalar_type() == rois.scalar_type(), "grad should have the same type as rois");
    const Tensor sum = at::zeros({batch_size, channels, height, width}, grad.options().dtype(at::kFloat));
    if (grad.numel() == 0) return sum.to(grad.scalar_type());
    // Places in the whole tensor; bins without a pixel have none.
    const auto integers = rois.options().dtype(at::kLong);
    const Tensor planes =
        rois.select(1, 0).to(at::kLong).mul(channels).unsqueeze(1).add(at::arange(channels, integers));
    const Tensor positions = planes.mul(height * width).view({-1, channels, 1, 1}).add(argmax);
    const Tensor index = at::where(argmax.lt(0), -1, positions).reshape(-1);
    indexed_copy_dim(sum.view(-1), grad.to(at::kFloat).reshape(-1), index, 0,
                     {.op = "roi_pool_backward",
                      .indexed_destination = true,
                      .operation = IndexedOperation::Add,
                      .skip = -1});
    return sum.to(grad.scalar_type());
}

// Channels are [outputs * pooled_height * pooled_width] -> ([K, outputs, ...], the channel of each bin).
std::tuple<Tensor, Tensor> ps_roi_align(const Tensor& input, const Tensor& rois, double spatial_scale,
                                        int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio) {
    check(input, rois, "ps_roi_align_forward_kernel");
    const int64_t channels = bin_channels(input, pooled_height, pooled_width);
    const Tensor mapping = empty_indices(input, rois, channels, pooled_height, pooled_width);
    return {pooled({shader::roi_align, spatial_scale, sampling_ratio, false, true}, input, rois,
                   pooled_height, pooled_width, mapping),
            mapping};
}

Tensor ps_roi_align_backward(const Tensor& grad, const Tensor& rois, const Tensor& channel_mapping,
                             double spatial_scale, int64_t pooled_height, int64_t pooled_width,
                             int64_t sampling_ratio, int64_t batch_size, int64_t channels, int64_t height,
                             int64_t width) {
    return backward({shader::roi_align_backward, spatial_scale, sampling_ratio, false, true}, grad, rois,
                    {batch_size, channels, height, width});
}

std::tuple<Tensor, Tensor> ps_roi_pool(const Tensor& input, const Tensor& rois, double spatial_scale,
                                       int64_t pooled_height, int64_t pooled_width) {
    check(input, rois, "ps_roi_pool_forward_kernel");
    const int64_t channels = bin_channels(input, pooled_height, pooled_width);
    const Tensor mapping = empty_indices(input, rois, channels, pooled_height, pooled_width);
    return {pooled({shader::ps_roi_pool, spatial_scale, 0, false, true}, input, rois, pooled_height,
                   pooled_width, mapping),
            mapping};
}

Tensor ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, const Tensor& channel_mapping,
                            double spatial_scale, int64_t pooled_height, int64_t pooled_width,
                            int64_t batch_size, int64_t channels, int64_t height, int64_t width) {
    return backward({shader::ps_roi_pool_backward, spatial_scale, 0, false, true}, grad, rois,
                    {batch_size, channels, height, width});
}

TORCH_LIBRARY_IMPL(torchvision, MPS, m) {
    m.impl("roi_align", TORCH_FN(roi_align));
    m.impl("_roi_align_backward", TORCH_FN(roi_align_backward));
    m.impl("roi_pool", TORCH_FN(roi_pool));
    m.impl("_roi_pool_backward", TORCH_FN(roi_pool_backward));
    m.impl("ps_roi_align", TORCH_FN(ps_roi_align));
    m.impl("_ps_roi_align_backward", TORCH_FN(ps_roi_align_backward));
    m.impl("ps_roi_pool", TORCH_FN(ps_roi_pool));
    m.impl("_ps_roi_pool_backward", TORCH_FN(ps_roi_pool_backward));
}

}  // namespace
}  // namespace anymps::ops
