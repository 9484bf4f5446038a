// Activations whose arguments need work on the host; the others are rows of pointwise.yaml alone.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/activation_ops.h>

#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>

#include "kernels/check_dtype.h"
#include "runtime/torch_version.h"

namespace anymps::ops {

using kernels::pointwise;
namespace rows = kernels::rows;

namespace {

void run_relu(at::TensorIterator iter) {
    pointwise(iter, rows::relu);
}

void check_relu(const Tensor& self) {
    TORCH_CHECK(self.scalar_type() != at::kBool, "Boolean inputs not supported for relu");
}

}  // namespace

Tensor ANYMPS_FUNC(relu)(const Tensor& self) {
    check_relu(self);
    Tensor out;
    auto iter = at::TensorIterator::unary_op(out, self);
    pointwise(iter, rows::relu);
    return iter.output();
}

Tensor& ANYMPS_FUNC(relu_)(Tensor& self) {
    check_relu(self);
    run_relu(at::TensorIterator::unary_op(self, self));
    return self;
}

Tensor& ANYMPS_FUNC(hardtanh_out)(const Tensor& self, const Scalar& min, const Scalar& max, Tensor& out) {
    TORCH_CHECK(self.scalar_type() != at::kBool, "Bool inputs not supported for hardtanh");
    if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false))
        return at::clamp_out(out, self, min, max);
    // The bounds do not change an integer tensor's dtype.
    const int64_t low = min.toLong(), high = max.toLong();
#if ANYMPS_TORCH_UNTIL(2, 14)
    TORCH_CHECK(self.scalar_type() != at::kByte || (low >= 0 && high >= 0),
                "cannot do hardtanh on an unsigned type with negative limits");
#endif
    return at::clamp_out(out, self, low, high);
}

ANYMPS_ROW(hardtanh, hardtanh_out(self, min_val, max_val, NewTensor(self.options())))
ANYMPS_ROW(hardtanh_, hardtanh_out(self, min_val, max_val, self))

// The buffer is the CPU kernel's own: here it stays empty, as on CUDA.
std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(log_sigmoid_forward_output)(const Tensor& self, Tensor& output,
                                                                     Tensor& buffer) {
    auto iter = at::TensorIteratorConfig().add_output(output).add_const_input(self).build();
    pointwise(iter, rows::log_sigmoid);
    return {output, buffer};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(log_sigmoid_forward)(const Tensor& self) {
    Tensor output = at::empty_like(self);
    Tensor buffer = at::empty({0}, self.options());
    log_sigmoid_forward_output(self, output, buffer);
    return {output, buffer};
}

Tensor& ANYMPS_FUNC(log_sigmoid_backward_grad_input)(const Tensor& grad, const Tensor& self,
                                                     const Tensor& buffer, Tensor& grad_input) {
    auto iter =
        at::TensorIteratorConfig().add_output(grad_input).add_const_input(grad).add_const_input(self).build();
    pointwise(iter, rows::log_sigmoid_backward);
    return grad_input;
}

ANYMPS_ROW(log_sigmoid_backward,
           log_sigmoid_backward_grad_input(grad_output, self, buffer, NewTensor(at::empty_like(grad_output))))

std::tuple<Tensor, Tensor> ANYMPS_FUNC(_prelu_kernel_backward)(const Tensor& grad, const Tensor& self,
                                                               const Tensor& weight) {
    Tensor grad_self = at::empty({0}, self.options());
    Tensor grad_weight = at::empty({0}, weight.options());
    auto iter = at::TensorIteratorConfig()
                    .add_output(grad_self)
                    .add_output(grad_weight)
                    .add_const_input(self)
                    .add_const_input(weight)
                    .add_const_input(grad)
                    .build();
    pointwise(iter, rows::_prelu_kernel_backward);
    return {grad_self, grad_weight};
}

Tensor& ANYMPS_FUNC(glu_backward_grad_input)(const Tensor& grad, const Tensor& self, int64_t dim,
                                             Tensor& grad_input) {
    TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
    const auto axis = at::maybe_wrap_dim(dim, self.dim());
    const int64_t size = self.size(axis);
    TORCH_CHECK(size % 2 == 0, "Halving dimension must be even, but dimension ", axis, " is size ", size);
    grad_input.resize_as_(self);
    const Tensor a = self.narrow(axis, 0, size / 2), b = self.narrow(axis, size / 2, size / 2);
    Tensor grad_a = grad_input.narrow(axis, 0, size / 2),
           grad_b = grad_input.narrow(axis, size / 2, size / 2);
    auto iter = at::TensorIteratorConfig()
                    .add_output(grad_a)
                    .add_output(grad_b)
                    .add_const_input(a)
                    .add_const_input(b)
                    .add_const_input(grad)
                    .resize_outputs(false)
                    .build();
    pointwise(iter, rows::glu_backward);
    return grad_input;
}

ANYMPS_ROW(glu_backward, glu_backward_grad_input(grad_output, self, dim, NewTensor(self.options())))

// Forward derivatives, of [a, b] -> a * sigmoid(b) with the tangent dx of x = [a, b].
Tensor ANYMPS_FUNC(glu_jvp)(const Tensor& glu, const Tensor& x, const Tensor& dx, int64_t dim) {
    const Tensor b = x.chunk(2, dim)[1];
    const auto tangents = dx.chunk(2, dim);
    return tangents[0] * b.sigmoid() + glu * b.neg().sigmoid() * tangents[1];
}

// ... and of its gradient [grad * sigmoid(b), grad * a * sigmoid(b) * (1 - sigmoid(b))].
Tensor ANYMPS_FUNC(glu_backward_jvp)(const Tensor& grad_x, const Tensor& grad_glu, const Tensor& x,
                                     const Tensor& dgrad_glu, const Tensor& dx, int64_t dim) {
    const auto grads = grad_x.chunk(2, dim), parts = x.chunk(2, dim), tangents = dx.chunk(2, dim);
    const Tensor b = parts[1].sigmoid(), slope = parts[1].neg().sigmoid();
    const Tensor of_a = dgrad_glu * b + grads[0] * slope * tangents[1];
    const Tensor of_b =
        (dgrad_glu * parts[0] + grad_glu * tangents[0]) * b * slope + grads[1] * (slope - b) * tangents[1];
    return at::cat({of_a, of_b}, dim);
}

// A leaky ReLU whose slopes are drawn from [lower, upper); without training it has their mean.
Tensor& ANYMPS_FUNC(rrelu_with_noise_out)(const Tensor& self, Tensor& noise, const Scalar& lower,
                                          const Scalar& upper, bool training,
                                          std::optional<Generator> generator, Tensor& out) {
    TORCH_CHECK(self.sym_sizes() == noise.sym_sizes(), "noise tensor shape must match self tensor shape. ",
                "Got self.shape = ", self.sym_sizes(), " noise.shape = ", noise.sym_sizes());
    if (!training) return at::leaky_relu_out(out, self, (lower.to<double>() + upper.to<double>()) / 2);
    kernels::check_floating(self.scalar_type(), "rrelu_with_noise_out_cpu");
    TORCH_CHECK(noise.scalar_type() == self.scalar_type(), "expected scalar type ", self.scalar_type(),
                " but found ", noise.scalar_type());
    noise.uniform_(lower.to<double>(), upper.to<double>(), std::move(generator));
    auto iter = at::TensorIteratorConfig()
                    .add_output(out)
                    .add_output(noise)
                    .add_const_input(self)
                    .add_const_input(noise)
                    .build();
    pointwise(iter, rows::rrelu);
    return out;
}

Tensor ANYMPS_FUNC(rrelu_with_noise)(const Tensor& self, Tensor& noise, const Scalar& lower,
                                     const Scalar& upper, bool training, std::optional<Generator> generator) {
    Tensor out = at::empty(self.sizes(), self.options());  // contiguous on the CPU, too
    return rrelu_with_noise_out(self, noise, lower, upper, training, std::move(generator), out);
}

ANYMPS_ROW(rrelu_with_noise_,
           rrelu_with_noise_out(self, noise, lower, upper, training, std::move(generator), self))

}  // namespace anymps::ops
