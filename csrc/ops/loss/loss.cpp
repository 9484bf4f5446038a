// Losses of two tensors element by element: a pointwise row, then PyTorch's reduction.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/loss/loss_ops.h>

#include <ATen/TensorIterator.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include "kernels/pointwise_rules.h"

namespace anymps::ops {

using kernels::pointwise;
namespace rows = kernels::rows;

namespace {

void reduce_into(const Tensor& out, const Tensor& loss, int64_t reduction) {
    Tensor result = out;
    if (reduction == at::Reduction::Mean)
        at::mean_out(result, loss, IntArrayRef{});
    else
        at::sum_out(result, loss, IntArrayRef{});
}

// A loss of `self` and `target` for which `iter` (of a structured op) holds an output of the inputs' shape
// only where there is no reduction.
void loss(at::TensorIteratorBase& iter, const kernels::PointwiseKernel& row, const Tensor& self,
          const Tensor& target, int64_t reduction, const Tensor& out,
          std::initializer_list<Scalar> scalars = {}) {
    if (reduction == at::Reduction::None) return pointwise(iter, row, scalars);
    Tensor elements;
    auto whole = at::TensorIterator::borrowing_binary_op(elements, self, target);
    pointwise(whole, row, scalars);
    reduce_into(out, whole.output(), reduction);
}

at::TensorIterator backward_iterator(const Tensor& grad_input, const Tensor& self, const Tensor& target,
                                     const Tensor& grad) {
    return at::TensorIteratorConfig()
        .add_output(grad_input)
        .add_const_input(self)
        .add_const_input(target)
        .add_const_input(grad)
        .build();
}

double norm_of(const Tensor& self, int64_t reduction, double factor) {
    return reduction == at::Reduction::Mean ? factor / static_cast<double>(self.numel()) : factor;
}

}  // namespace

ANYMPS_ROW(mse_loss_out, loss(*this, rows::mse_loss, self, target, reduction, out))

Tensor& ANYMPS_FUNC(mse_loss_backward_grad_input)(const Tensor& grad, const Tensor& self,
                                                  const Tensor& target, int64_t reduction,
                                                  Tensor& grad_input) {
    auto iter = backward_iterator(grad_input, self, target, grad);
    pointwise(iter, rows::mse_loss_backward, {norm_of(self, reduction, 2.0)});
    return grad_input;
}

ANYMPS_ROW(mse_loss_backward,
           mse_loss_backward_grad_input(grad_output, self, target, reduction, NewTensor(self.options())))
ANYMPS_ROW(smooth_l1_loss_out, loss(*this, rows::smooth_l1_loss, self, target, reduction, out, {beta}))

Tensor& ANYMPS_FUNC(smooth_l1_loss_backward_grad_input)(const Tensor& grad, const Tensor& self,
                                                        const Tensor& target, int64_t reduction, double beta,
                                                        Tensor& grad_input) {
    auto iter = backward_iterator(grad_input, self, target, grad);
    pointwise(iter, rows::smooth_l1_loss_backward, {norm_of(self, reduction, 1.0), beta});
    return grad_input;
}

Tensor& ANYMPS_FUNC(huber_loss_out)(const Tensor& self, const Tensor& target, int64_t reduction, double delta,
                                    Tensor& out) {
    TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
    if (reduction == at::Reduction::None) {
        auto iter = at::TensorIterator::borrowing_binary_op(out, self, target);
        pointwise(iter, rows::huber_loss, {delta});
        return out;
    }
    Tensor elements;
    auto iter = at::TensorIterator::borrowing_binary_op(elements, self, target);
    pointwise(iter, rows::huber_loss, {delta});
    reduce_into(out, iter.output(), reduction);
    return out;
}

ANYMPS_ROW(huber_loss, huber_loss_out(self, target, reduction, delta, NewTensor(self.options())))

Tensor& ANYMPS_FUNC(huber_loss_backward_out)(const Tensor& grad, const Tensor& self, const Tensor& target,
                                             int64_t reduction, double delta, Tensor& grad_input) {
    auto iter = backward_iterator(grad_input, self, target, grad);
    pointwise(iter, rows::huber_loss_backward, {norm_of(self, reduction, 1.0), delta});
    return grad_input;
}

Tensor& ANYMPS_FUNC(binary_cross_entropy_out)(const Tensor& self, const Tensor& target,
                                              const std::optional<Tensor>& weight, int64_t reduction,
                                              Tensor& out) {
    Tensor elements = reduction == at::Reduction::None ? out : at::empty(self.sizes(), self.options());
    auto config = at::TensorIteratorConfig();
    config.add_output(elements).add_const_input(self).add_const_input(target);
    const bool weighted = weight.has_value() && weight->defined();
    if (weighted) config.add_const_input(*weight);
    auto iter = config.build();
    pointwise(iter, weighted ? rows::binary_cross_entropy_weighted : rows::binary_cross_entropy);
    if (reduction != at::Reduction::None) reduce_into(out.resize_({}), elements, reduction);
    return out;
}

ANYMPS_ROW(binary_cross_entropy,
           binary_cross_entropy_out(self, target, weight, reduction, NewTensor(self.options())))

Tensor& ANYMPS_FUNC(binary_cross_entropy_backward_grad_input)(const Tensor& grad, const Tensor& self,
                                                              const Tensor& target,
                                                              const std::optional<Tensor>& weight,
                                                              int64_t reduction, Tensor& grad_input) {
    const double norm = norm_of(self, reduction, 1.0);
    auto config = at::TensorIteratorConfig();
    config.add_output(grad_input).add_const_input(grad).add_const_input(self).add_const_input(target);
    const bool weighted = weight.has_value() && weight->defined();
    if (weighted) config.add_const_input(*weight);
    auto iter = config.build();
    pointwise(iter,
              weighted ? rows::binary_cross_entropy_backward_weighted : rows::binary_cross_entropy_backward,
              {norm});
    return grad_input;
}

ANYMPS_ROW(binary_cross_entropy_backward,
           binary_cross_entropy_backward_grad_input(grad_output, self, target, weight, reduction,
                                                    NewTensor(self.options())))

}  // namespace anymps::ops
