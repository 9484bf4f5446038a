// torchvision::deform_conv2d and its gradients: columns of bilinear samples, then matrix products.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <anymps/shaders/torchvision/deform_conv.h>
#include <torch/library.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "ops/same_device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::deform_conv;
using shader::DeformArgs;
using shader::DeformKernel;

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(),
                "deform_conv2d on MPS: a size of ", value, " is too large");
    return static_cast<uint32_t>(value);
}

struct Shape {
    int64_t stride[2], padding[2], dilation[2], groups, offset_groups;
    bool use_mask;
};

class DeformConv {
  public:
    DeformConv(const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
               const Shape& shape);

    // [groups of weights: 1, groups, out / groups, in / groups * kernel], f32.
    Tensor weights() const { return split(weight_.to(at::kFloat).reshape({1, weight_.size(0), -1}), 1); }
    // [batch, channels, ...] with the channels split into the groups of the weights.
    Tensor split(const Tensor& t, int64_t dim) const {
        return t.reshape({t.size(0), shape_.groups, t.size(dim) / shape_.groups, -1});
    }
    int64_t height() const { return windows_[0]; }
    int64_t width() const { return windows_[1]; }
    Tensor columns() const;
    void gradients(const Tensor& grad_columns, const Tensor& grad_input, const Tensor& grad_offset,
                   const Tensor& grad_mask) const;

  private:
    DeformKernel::Call prepare(const DeformKernel& kernel, int64_t threads, int64_t span,
                               const Tensor& columns, DeformArgs& args) const;

    Tensor input_, weight_, offset_, mask_;
    Shape shape_;
    int64_t windows_[2];
};

DeformConv::DeformConv(const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
                       const Shape& shape)
    : input_(input.contiguous()),
      weight_(weight),
      offset_(offset.contiguous()),
      mask_(mask.contiguous()),
      shape_(shape) {
    check_same_device("deform_conv2d",
                      {{"input", input}, {"weight", weight}, {"offset", offset}, {"mask", mask}});
    TORCH_CHECK(input.dim() == 4 && offset.dim() == 4 && (!shape.use_mask || mask.dim() == 4) &&
                weight.dim() == 4);
    kernels::check_floating(input.scalar_type(), "deformable_im2col");
    for (const Tensor* t : {&weight, &offset, shape.use_mask ? &mask : &offset}) {
        TORCH_CHECK(t->scalar_type() == input.scalar_type(), "expected scalar type ", input.scalar_type(),
                    " but found ", t->scalar_type());
    }
    const int64_t taps = weight.size(2) * weight.size(3);
    TORCH_CHECK(weight.size(1) * shape.groups == input.size(1));
    TORCH_CHECK(weight.size(0) % shape.groups == 0);
    TORCH_CHECK(input.size(1) % shape.offset_groups == 0);
    TORCH_CHECK(offset.size(1) == shape.offset_groups * 2 * taps,
                "offset.shape[1] is not valid: got: ", offset.size(1),
                " expected: ", shape.offset_groups * 2 * taps);
    TORCH_CHECK(!shape.use_mask || mask.size(1) == shape.offset_groups * taps,
                "mask.shape[1] is not valid: got: ", mask.size(1), " expected: ", shape.offset_groups * taps);
    TORCH_CHECK(offset.size(0) == input.size(0), "invalid batch size of offset");
    for (int axis = 0; axis < 2; ++axis) {
        TORCH_CHECK(shape.stride[axis] > 0 && shape.padding[axis] >= 0 && shape.dilation[axis] > 0);
        const int64_t reach = shape.dilation[axis] * (weight.size(2 + axis) - 1) + 1;
        windows_[axis] = (input.size(2 + axis) + 2 * shape.padding[axis] - reach) / shape.stride[axis] + 1;
    }
    TORCH_CHECK(offset.size(2) == windows_[0] && offset.size(3) == windows_[1], "offset output dims: (",
                offset.size(2), ", ", offset.size(3), ") - computed output dims: (", windows_[0], ", ",
                windows_[1], ")");
    TORCH_CHECK(!shape.use_mask || mask.sizes().slice(2) == offset.sizes().slice(2),
                "invalid output size of mask");
    TORCH_CHECK(windows_[0] > 0 && windows_[1] > 0, "Calculated output size too small - out_h: ", windows_[0],
                " out_w: ", windows_[1]);
}

DeformKernel::Call DeformConv::prepare(const DeformKernel& kernel, int64_t threads, int64_t span,
                                       const Tensor& columns, DeformArgs& args) const {
    args.input = kernels::address(input_);
    args.offset = kernels::address(offset_);
    args.mask = shape_.use_mask ? kernels::address(mask_) : 0;
    args.columns = kernels::address(columns);
    args.batch = narrow(input_.size(0));
    args.channels = narrow(input_.size(1));
    args.groups = narrow(shape_.offset_groups);
    for (int axis = 0; axis < 2; ++axis) {
        args.size[axis] = narrow(input_.size(2 + axis));
        args.kernel[axis] = narrow(weight_.size(2 + axis));
        args.windows[axis] = narrow(windows_[axis]);
        args.stride[axis] = narrow(shape_.stride[axis]);
        args.padding[axis] = narrow(shape_.padding[axis]);
        args.dilation[axis] = narrow(shape_.dilation[axis]);
    }
    args.threads = narrow(threads);
    args.span = narrow(span);
    auto call = kernel.call({.workgroup = kernels::flat_workgroup(),
                             .type = kernels::code(input_.scalar_type()),
                             .masked = shape_.use_mask,
                             .deterministic = span > 1});
    call.read(input_).read(offset_);
    if (shape_.use_mask) call.read(mask_);
    return call;
}

kernels::Grid grid_of(const DeformArgs& args) {
    return kernels::flat_grid(args.threads);
}

Tensor DeformConv::columns() const {
    const int64_t rows = input_.size(1) * weight_.size(2) * weight_.size(3);
    const Tensor columns =
        at::empty({input_.size(0), rows, windows_[0] * windows_[1]}, input_.options().dtype(at::kFloat));
    if (columns.numel() == 0) return columns;
    DeformArgs args{};
    prepare(shader::deform_columns, columns.numel(), 1, columns, args)
        .write(columns)
        .dispatch(args, grid_of(args));
    return columns;
}

void DeformConv::gradients(const Tensor& grad_columns, const Tensor& grad_input, const Tensor& grad_offset,
                           const Tensor& grad_mask) const {
    if (grad_columns.numel() == 0) return;
    DeformArgs args{};
    args.grad_input = kernels::address(grad_input);
    args.grad_offset = kernels::address(grad_offset);
    args.grad_mask = shape_.use_mask ? kernels::address(grad_mask) : 0;
    const bool ordered = at::globalContext().deterministicAlgorithms();
    const int64_t planes = input_.size(0) * input_.size(1),
                  span = ordered ? grad_columns.numel() / planes : 1;
    prepare(shader::deform_columns_to_input, grad_columns.numel() / span, span, grad_columns, args)
        .read(grad_columns)
        .write(grad_input)
        .dispatch(args, grid_of(args));
    auto call = prepare(shader::deform_columns_to_offset, grad_offset.numel() / 2, 1, grad_columns, args);
    call.read(grad_columns).write(grad_offset);
    if (shape_.use_mask) call.write(grad_mask);
    call.dispatch(args, grid_of(args));
}

// input [N, C, H, W], weight [O, C / groups, kh, kw], offset [N, 2 * offset_groups * kh * kw, h, w], mask the
// half of it -> [N, O, h, w]. The sums are in float.
Tensor deform_conv2d(const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
                     const Tensor& bias, int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w,
                     int64_t dilation_h, int64_t dilation_w, int64_t groups, int64_t offset_groups,
                     bool use_mask) {
    const DeformConv conv(
        input, weight, offset, mask,
        {{stride_h, stride_w}, {pad_h, pad_w}, {dilation_h, dilation_w}, groups, offset_groups, use_mask});
    const Tensor product = at::matmul(conv.weights(), conv.split(conv.columns(), 1));
    return product.reshape({input.size(0), weight.size(0), conv.height(), conv.width()})
        .add_(bias.view({1, -1, 1, 1}))
        .to(input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> deform_conv2d_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, const Tensor& offset, const Tensor& mask,
    const Tensor& bias, int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w, int64_t dilation_h,
    int64_t dilation_w, int64_t groups, int64_t offset_groups, bool use_mask) {
    const DeformConv conv(
        input, weight, offset, mask,
        {{stride_h, stride_w}, {pad_h, pad_w}, {dilation_h, dilation_w}, groups, offset_groups, use_mask});
    const at::ScalarType type = input.scalar_type();
    const Tensor gradient = conv.split(grad.to(at::kFloat), 1);
    const Tensor columns = conv.columns();
    const Tensor grad_columns =
        at::matmul(conv.weights().transpose(-1, -2), gradient).reshape(columns.sizes()).contiguous();
    const auto floats = input.options().dtype(at::kFloat);
    const Tensor grad_input = at::zeros(input.sizes(), floats),
                 grad_offset = at::zeros(offset.sizes(), floats), grad_mask = at::zeros(mask.sizes(), floats);
    conv.gradients(grad_columns, grad_input, grad_offset, grad_mask);
    const Tensor grad_weight =
        at::matmul(gradient, conv.split(columns, 1).transpose(-1, -2)).sum(0).reshape(weight.sizes());
    return {grad_input.to(type), grad_weight.to(type), grad_offset.to(type), grad_mask.to(type),
            grad.sum({0, 2, 3}).to(bias.scalar_type())};
}

TORCH_LIBRARY_IMPL(torchvision, MPS, m) {
    m.impl("deform_conv2d", TORCH_FN(deform_conv2d));
    m.impl("_deform_conv2d_backward", TORCH_FN(deform_conv2d_backward));
}

}  // namespace
}  // namespace anymps::ops
