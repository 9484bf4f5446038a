// nll_loss and nll_loss2d with their gradients; cross_entropy is log_softmax and one of these.
#include <ATen/core/Reduction.h>
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <anymps/ops/loss/nll_loss_ops.h>
#include <anymps/ops/reduction_rows.h>
#include <anymps/shaders/loss/nll_loss.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "ops/loss/nll_loss.h"

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/same_dtype.h"

namespace anymps::ops {

namespace {

using kernels::address;
using kernels::address_or_0;
using kernels::code;

namespace shader = shaders::nll_loss;

Tensor empty_like(const Tensor& like, IntArrayRef shape, ScalarType dtype) {
    return Tensor(at::detail::empty_mps(shape, like.options().dtype(dtype)));
}

// Scores as (batch, class, inner); a copy only where strides do not allow the view.
Tensor as_classes(const Tensor& x) {
    if (x.dim() == 1) return x.reshape({1, x.size(0), 1});
    return x.reshape({x.size(0), x.size(1), x.dim() == 2 ? 1 : x.size(2) * x.size(3)});
}

struct Targets {
    Targets(const Tensor& labels, const Tensor& weights, const Tensor& x, int64_t ignore_index)
        : target(labels.contiguous()),
          weight(weights.defined() ? weights.contiguous() : weights),
          ignored(ignore_index) {
        TORCH_CHECK(labels.scalar_type() == at::kLong || labels.scalar_type() == at::kByte,
                    "expected target dtype to be Long or Byte, but got ", labels.scalar_type());
        kernels::check_floating(x.scalar_type(), "nll_loss_out_frame");
        TORCH_CHECK(!weight.defined() || weight.scalar_type() == x.scalar_type(), "expected scalar type ",
                    x.scalar_type(), " but found ", (weight.defined() ? weight : x).scalar_type());
    }
    Tensor target, weight;
    int64_t ignored;
};

// x: scores to read or the gradient to write, as (batch, class, inner). loss: one element a target to write,
// or the gradient to read, of that stride. weights: of every target to write, or their sum to divide by; may
// be undefined.
void run(bool forward, const char* op, const Targets& targets, const Tensor& x, const Tensor& loss,
         uint32_t stride, const Tensor& weights) {
    const int64_t count = targets.target.numel(), item = x.element_size();
    TORCH_CHECK(count < (int64_t{1} << 32), op, ": ", count,
                " targets; the MPS backend counts to 2^32 - 1 here");
    if (count == 0) return;
    const auto error = runtime::encoder().error_slot(op);
    const shader::Args args{.x = address(x),
                            .target = address(targets.target),
                            .weight = address_or_0(targets.weight),
                            .loss = address(loss),
                            .weights = address_or_0(weights),
                            .batch_stride = x.stride(0) * item,
                            .class_stride = x.stride(1) * item,
                            .inner_stride = x.stride(2) * item,
                            .ignored = targets.ignored,
                            .error = error.address,
                            .code = error.code,
                            .count = static_cast<uint32_t>(count),
                            .classes = static_cast<uint32_t>(x.size(1)),
                            .grad_stride = stride,
                            .inner = kernels::FastDivider(static_cast<uint32_t>(x.size(2)))};
    const uint32_t workgroup = std::max(64u, kernels::launch_config().workgroup);
    shader::Constants constants{.workgroup = workgroup,
                                .type = code(x.scalar_type()),
                                .target_type = code(targets.target.scalar_type()),
                                .out_type = code(loss.scalar_type()),
                                .mean = weights.defined()};
    if (targets.weight.defined()) constants.weight_type = code(targets.weight.scalar_type());
    auto call = (forward ? shader::nll_loss_forward : shader::nll_loss_backward).call(constants);
    call.read(targets.target).read(targets.weight);
    if (forward)
        call.read(x).write(loss).write(weights);
    else
        call.write(x).read(loss).read(weights);
    call.dispatch(args, kernels::flat_grid(args.count, workgroup));
}

void forward(const char* op, const Tensor& self, const Targets& targets, int64_t reduction,
             const Tensor& output, const Tensor& total_weight) {
    const Tensor x = as_classes(self);
    if (reduction == at::Reduction::None && self.dim() > 1) {
        Tensor elements =
            output.is_contiguous() ? output : empty_like(output, output.sizes(), output.scalar_type());
        run(true, op, targets, x, elements, 1, Tensor());
        if (!elements.is_same(output)) output.copy_(elements);
        total_weight.zero_();
        return;
    }
    const int64_t count = targets.target.numel();
    const Tensor losses = empty_like(x, {count}, at::kFloat), weights = empty_like(x, {count}, at::kFloat);
    run(true, op, targets, x, losses, 1, weights);
    kernels::reduce(rows::weighted_loss, {losses, weights}, kernels::dim_mask(losses, 0),
                    {output, total_weight}, {reduction == at::Reduction::Mean ? 1.0f : 0.0f});
}

void backward(const char* op, const Tensor& grad, const Targets& targets, int64_t reduction,
              const Tensor& total_weight, const Tensor& grad_input) {
    check_same_dtype_as(grad_input, grad);
    Tensor whole = grad_input.is_contiguous()
                       ? grad_input
                       : empty_like(grad_input, grad_input.sizes(), grad_input.scalar_type());
    whole.zero_();
    const bool each = reduction == at::Reduction::None && grad_input.dim() > 1;
    run(false, op, targets, as_classes(whole), grad.contiguous(), each ? 1 : 0,
        reduction == at::Reduction::Mean ? total_weight : Tensor());
    if (!whole.is_same(grad_input)) grad_input.copy_(whole);
}

Tensor optional(at::OptionalTensorRef tensor) {
    return tensor.has_value() ? *tensor : Tensor();
}
Tensor optional(const std::optional<Tensor>& tensor) {
    return tensor ? *tensor : Tensor();
}

void check_2d(const Tensor& self, const Tensor& target, const Tensor& weight) {
    TORCH_CHECK(target.dim() == 3,
                "only batches of spatial targets supported (3D tensors) but got targets of dimension: ",
                target.dim());
    TORCH_CHECK(
        self.dim() == 4,
        "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", self.dim());
    TORCH_CHECK(!weight.defined() || weight.numel() == self.size(1),
                "weight tensor should be defined either for all or no classes");
    TORCH_CHECK(
        self.size(0) == target.size(0) && self.size(2) == target.size(1) && self.size(3) == target.size(2),
        "size mismatch (got input: ", self.sizes(), " , target: ", target.sizes());
}

void check_grad_2d(const Tensor& grad, const Tensor& target) {
    TORCH_CHECK(grad.dim() == 3,
                "grad_output must have same dimension as target (3) but got dimension: ", grad.sizes());
    TORCH_CHECK(grad.sizes() == target.sizes(), "size mismatch (got grad_output: ", grad.sizes(),
                " target: ", target.sizes());
}

}  // namespace

std::tuple<Tensor, Tensor> nll_loss_in_float(const Tensor& self, const Tensor& target, const Tensor& weight,
                                             int64_t reduction, int64_t ignore_index) {
    const bool none = reduction == at::Reduction::None;
    Tensor loss = empty_like(self, none ? target.sizes() : IntArrayRef(), at::kFloat),
           total_weight = empty_like(self, {}, at::kFloat);
    forward("nll_loss", self, {target, weight, self, ignore_index}, reduction, loss, total_weight);
    return {loss, total_weight};
}

TORCH_IMPL_FUNC(nll_loss_forward_output)
(const Tensor& self, const Tensor& target, at::OptionalTensorRef weight, int64_t reduction,
 int64_t ignore_index, const Tensor& output, const Tensor& total_weight) {
    check_same_dtype_as(self, output);
    check_same_dtype_as(self, total_weight);
    forward("nll_loss", self, {target, optional(weight), self, ignore_index}, reduction, output,
            total_weight);
}

ANYMPS_ROW(nll_loss_backward_grad_input,
           backward("nll_loss_backward", grad_output, {target, optional(weight), self, ignore_index},
                    reduction, total_weight, grad_input))

std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(nll_loss2d_forward_output)(const Tensor& self, const Tensor& target,
                                                                    const std::optional<Tensor>& weight,
                                                                    int64_t reduction, int64_t ignore_index,
                                                                    Tensor& output, Tensor& total_weight) {
    check_2d(self, target, optional(weight));
    check_same_dtype_as(self, output);
    check_same_dtype_as(self, total_weight);
    const bool none = reduction == at::Reduction::None;
    at::native::resize_output(output, none ? target.sizes() : IntArrayRef());
    at::native::resize_output(total_weight, {});
    forward("nll_loss2d", self, {target, optional(weight), self, ignore_index}, reduction, output,
            total_weight);
    return {output, total_weight};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(nll_loss2d_forward)(const Tensor& self, const Tensor& target,
                                                           const std::optional<Tensor>& weight,
                                                           int64_t reduction, int64_t ignore_index) {
    Tensor output = empty_like(self, {0}, self.scalar_type()),
           total_weight = empty_like(self, {}, self.scalar_type());
    nll_loss2d_forward_output(self, target, weight, reduction, ignore_index, output, total_weight);
    return {output, total_weight};
}

Tensor& ANYMPS_FUNC(nll_loss2d_backward_grad_input)(const Tensor& grad_output, const Tensor& self,
                                                    const Tensor& target, const std::optional<Tensor>& weight,
                                                    int64_t reduction, int64_t ignore_index,
                                                    const Tensor& total_weight, Tensor& grad_input) {
    check_2d(self, target, optional(weight));
    if (reduction == at::Reduction::None) check_grad_2d(grad_output, target);
    at::native::resize_output(grad_input, self.sizes());
    backward("nll_loss2d_backward", grad_output, {target, optional(weight), self, ignore_index}, reduction,
             total_weight, grad_input);
    return grad_input;
}

ANYMPS_ROW(nll_loss2d_backward,
           nll_loss2d_backward_grad_input(grad_output, self, target, weight, reduction, ignore_index,
                                          total_weight,
                                          NewTensor(empty_like(self, self.sizes(), self.scalar_type()))))

}  // namespace anymps::ops
