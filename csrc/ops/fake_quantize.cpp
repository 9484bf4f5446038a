// Fake quantization, with fixed, learnable and observed scales: what quantization-aware training computes.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/fake_quantize_ops.h>

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>

#include "ops/fake_quantize.h"

namespace anymps::ops {
namespace {

namespace rows = kernels::rows;

// Bounds of quantized values, as the rows take them: kernels compare floats, so the numbers inside are
// bounded by the floats next to the bounds.
struct Range {
    double low, high, least, most;

    Range(int64_t min, int64_t max) : low(double(min)), high(double(max)) {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        const auto near_low = float(min), near_high = float(max);
        least = near_low < low ? std::nextafter(near_low, kInfinity) : near_low;
        most = near_high > high ? std::nextafter(near_high, -kInfinity) : near_high;
    }
};

void check_range(int64_t quant_min, int64_t quant_max) {
    TORCH_CHECK(quant_min <= quant_max, "`quant_min` should be less than or         equal to `quant_max`.");
}

// Output and mask of a row over self and what follows it as tensors.
struct Fake {
    Tensor output, mask;
    at::TensorIterator iter;

    Fake(const Tensor& self, const kernels::PointwiseKernel& row, TensorList qparams)
        : output(at::empty_like(self)), mask(at::empty_like(self, self.options().dtype(at::kBool))) {
        row.check(self.scalar_type());
        auto config = at::TensorIteratorConfig();
        config.check_all_same_dtype(false).add_output(output).add_output(mask).add_const_input(self);
        for (const Tensor& t : qparams) config.add_owned_const_input(t);
        iter = config.build();
    }
    std::tuple<Tensor, Tensor> result() const { return {output, mask}; }
};

std::tuple<Tensor, Tensor> by_channel(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                                      int64_t axis, int64_t quant_min, int64_t quant_max) {
    const Range range(quant_min, quant_max);
    const bool rounds_once = at::isFloatingType(zero_point.scalar_type());
    rows::fake_quantize_float_zero_point.check(self.scalar_type());
    const auto& row = rounds_once ? rows::fake_quantize_float_zero_point : rows::fake_quantize;
    Fake fake(self, row, {along(scale, self, axis), along(zero_point, self, axis)});
    if (rounds_once)
        kernels::pointwise(fake.iter, row, {range.low, range.high, range.least, range.most}, at::kFloat);
    else
        kernels::pointwise(fake.iter, row, {1, range.low, range.high, range.least, range.most}, at::kFloat);
    return fake.result();
}

void check_channels(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis) {
    TORCH_CHECK(scale.dim() == 1, "scale should be a 1-D tensor");
    TORCH_CHECK(zero_point.dim() == 1, "zero point should be a 1-D tensor");
    TORCH_CHECK(scale.numel() == zero_point.numel(), "scale and zero-point need to have the same dimensions");
    TORCH_CHECK(scale.numel() == self.size(axis),
                "dimensions of scale and zero-point are not consistent with input tensor");
    TORCH_CHECK(axis >= 0 && axis < self.dim(), "`axis` must be between 0 and number of dimensions of input");
}

void check_learnable(const Tensor& grad, const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                     int64_t quant_min, int64_t quant_max) {
    for (const Tensor& t : {grad, self, scale, zero_point})
        TORCH_CHECK(t.scalar_type() == at::kFloat,
                    "learnable fake quantization: expected scalar type Float but found ", t.scalar_type());
    TORCH_CHECK(self.sizes() == grad.sizes(), "`X` and `dY` are not the same size");
    TORCH_CHECK(quant_min <= 0 && quant_max >= 0,
                "`quant_min` should be less than or         equal to `quant_max`, and the quantization range "
                "should include 0.");
}

// Gradients of the input, and of scale and zero point before they are summed.
std::tuple<Tensor, Tensor, Tensor> learnable_backward(const Tensor& grad, const Tensor& self,
                                                      const Tensor& scale, const Tensor& zero_point,
                                                      int64_t quant_min, int64_t quant_max,
                                                      double grad_factor) {
    const Range range(quant_min, quant_max);
    Tensor grad_self = at::empty_like(self), grad_scale = at::empty_like(self),
           grad_zero_point = at::empty_like(self);
    const auto inputs = [&](at::TensorIteratorConfig& config) -> at::TensorIteratorConfig& {
        return config.add_const_input(self).add_const_input(grad).add_const_input(scale).add_const_input(
            zero_point);
    };
    at::TensorIteratorConfig one, two;
    auto iter = inputs(one.add_output(grad_self)).build();
    kernels::pointwise(iter, rows::fake_quantize_learnable_backward, {range.least, range.most});
    auto sums = inputs(two.add_output(grad_scale).add_output(grad_zero_point)).build();
    kernels::pointwise(sums, rows::fake_quantize_learnable_backward_qparams,
                       {range.low, range.high, range.least, range.most, grad_factor});
    return {grad_self, grad_scale, grad_zero_point};
}

}  // namespace

Tensor along(const Tensor& channels, const Tensor& self, int64_t axis) {
    c10::DimVector shape(self.dim(), 1);
    shape[axis] = self.size(axis);
    return channels.reshape(shape);
}

std::tuple<Tensor, Tensor> fake_quantized(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                                          const Tensor& enabled, int64_t quant_min, int64_t quant_max) {
    const Range range(quant_min, quant_max);
    Fake fake(self, rows::fake_quantize, {scale, zero_point, enabled});
    kernels::pointwise(fake.iter, rows::fake_quantize, {range.low, range.high, range.least, range.most},
                       at::kFloat);
    return fake.result();
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(fake_quantize_per_tensor_affine_cachemask)(
    const Tensor& self, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
    check_range(quant_min, quant_max);
    TORCH_CHECK(zero_point >= quant_min && zero_point <= quant_max,
                "`zero_point` must be between `quant_min` and `quant_max`.");
    const Range range(quant_min, quant_max);
    Fake fake(self, rows::fake_quantize, {});
    kernels::pointwise(fake.iter, rows::fake_quantize,
                       {scale, zero_point, 1, range.low, range.high, range.least, range.most}, at::kFloat);
    return fake.result();
}

// scale, zero_point, fake_quant_enabled: one element each.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_fake_quantize_per_tensor_affine_cachemask_tensor_qparams)(
    const Tensor& self, const Tensor& scale, const Tensor& zero_point, const Tensor& fake_quant_enabled,
    int64_t quant_min, int64_t quant_max) {
    check_range(quant_min, quant_max);
    const auto one = [&](const Tensor& t) {
        TORCH_CHECK(t.numel() == 1, "a Tensor with ", t.numel(), " elements cannot be converted to Scalar");
        return t.reshape({});
    };
    return fake_quantized(self, one(scale), one(zero_point), one(fake_quant_enabled), quant_min, quant_max);
}

// scale, zero_point: one element for every place of `axis`.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(fake_quantize_per_channel_affine_cachemask)(
    const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
    int64_t quant_max) {
    TORCH_CHECK(scale.scalar_type() == at::kFloat || scale.scalar_type() == at::kBFloat16,
                "Scale must be Float or BFloat16, found ", scale.scalar_type());
    TORCH_CHECK(zero_point.scalar_type() == at::kInt || zero_point.scalar_type() == at::kFloat ||
                    zero_point.scalar_type() == at::kHalf,
                "Zero-point must be Int32, Float or Half, found ", zero_point.scalar_type());
    check_channels(self, scale, zero_point, axis);
    check_range(quant_min, quant_max);
    if (!at::isFloatingType(zero_point.scalar_type()) && zero_point.numel() > 0) {
        const Tensor outside = zero_point.lt(quant_min).logical_or_(zero_point.gt(quant_max));
        TORCH_CHECK(!outside.any().item<bool>(), "`zero_point` must be between `quant_min` and `quant_max`.");
    }
    return by_channel(self, scale, zero_point, axis, quant_min, quant_max);
}

Tensor ANYMPS_FUNC(_fake_quantize_learnable_per_tensor_affine)(const Tensor& self, const Tensor& scale,
                                                               const Tensor& zero_point, int64_t quant_min,
                                                               int64_t quant_max, double grad_factor) {
    check_range(quant_min, quant_max);
    const Tensor rounded = zero_point[0].round().clamp(quant_min, quant_max);
    return std::get<0>(
        fake_quantized(self, scale[0], rounded, at::ones({}, scale.options()), quant_min, quant_max));
}

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(_fake_quantize_learnable_per_tensor_affine_backward)(
    const Tensor& grad, const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t quant_min,
    int64_t quant_max, double grad_factor) {
    check_learnable(grad, self, scale, zero_point, quant_min, quant_max);
    if (self.numel() == 0) return {self, scale, zero_point};
    // Halves go up here and to even in the forward pass, as in PyTorch.
    const Tensor rounded = zero_point[0].add(0.5).clamp(quant_min, quant_max).trunc();
    const auto [input, scales, zero_points] =
        learnable_backward(grad, self, scale[0], rounded, quant_min, quant_max, grad_factor);
    return {input, scales.sum().unsqueeze(0), zero_points.sum().unsqueeze(0)};
}

Tensor ANYMPS_FUNC(_fake_quantize_learnable_per_channel_affine)(const Tensor& self, const Tensor& scale,
                                                                const Tensor& zero_point, int64_t axis,
                                                                int64_t quant_min, int64_t quant_max,
                                                                double grad_factor) {
    check_channels(self, scale, zero_point, axis);
    check_range(quant_min, quant_max);
    const Tensor rounded = zero_point.round().clamp_(quant_min, quant_max).to(at::kInt);
    return std::get<0>(by_channel(self, scale, rounded, axis, quant_min, quant_max));
}

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(_fake_quantize_learnable_per_channel_affine_backward)(
    const Tensor& grad, const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis,
    int64_t quant_min, int64_t quant_max, double grad_factor) {
    check_learnable(grad, self, scale, zero_point, quant_min, quant_max);
    check_channels(self, scale, zero_point, axis);
    if (self.numel() == 0) return {self, scale, zero_point};
    const Tensor rounded = zero_point.round().clamp_(quant_min, quant_max);
    const auto [input, scales, zero_points] = learnable_backward(
        grad, self, along(scale, self, axis), along(rounded, self, axis), quant_min, quant_max, grad_factor);
    c10::DimVector others;
    for (int64_t d = 0; d < self.dim(); ++d)
        if (d != axis) others.push_back(d);
    if (others.empty()) return {input, scales, zero_points};
    return {input, scales.sum(others), zero_points.sum(others)};
}

}  // namespace anymps::ops
