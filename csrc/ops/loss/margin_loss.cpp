// multi_margin_loss and multilabel_margin_loss with their gradients.
#include <anymps/ops/loss/margin_loss_ops.h>
#include <anymps/shaders/loss/multilabel_margin_loss.h>

#include <ATen/core/Reduction.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <ATen/native/LossMulti.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/same_dtype.h"

namespace anymps::ops {
namespace {

void check_types(const Tensor& self, const Tensor& target, const char* label) {
    kernels::check_floating(self.scalar_type(), label);
    TORCH_CHECK(target.scalar_type() == at::kLong, "expected scalar type Long but found ",
                target.scalar_type());
}

// Waits for the device: a target out of range raises here, as on the CPU.
std::pair<int64_t, int64_t> range_of(const Tensor& target) {
    const auto [least, most] = at::aminmax(target);
    return {least.item<int64_t>(), most.item<int64_t>()};
}

// The loss [rows] as the operator's result, a number where there is no batch.
void reduce_into(Tensor& out, const Tensor& loss, int64_t reduction, bool scalar) {
    if (reduction == at::Reduction::None && !scalar)
        out.copy_(loss);
    else
        out.copy_(reduction == at::Reduction::Mean ? loss.mean() : loss.sum());
}

// grad_output for each row of [rows, classes].
Tensor factor_of(const Tensor& grad_output, int64_t reduction, int64_t rows) {
    const bool one = reduction != at::Reduction::None || grad_output.dim() == 0;
    const Tensor factor = one ? grad_output.reshape({1, 1}) : grad_output.reshape({rows, 1});
    return reduction == at::Reduction::Mean ? factor.div(static_cast<double>(rows)) : factor;
}

// --- multi_margin_loss: sum over the other classes of weight[target] * max(0, margin - x[target] + x)^p
// -----

struct MultiMargin {
    Tensor rows, target, violation, weight;  // violation: what is in the brackets above
    int64_t count = 0, classes = 0, p = 1;

    MultiMargin(const Tensor& self, const Tensor& labels, const Scalar& p_, const Scalar& margin,
                const std::optional<Tensor>& weights) {
        p = p_.toInt();
        TORCH_CHECK(p == 1 || p == 2, "only p == 1 and p == 2 supported");
        at::native::multi_margin_loss_shape_check(count, classes, self.dim(), self, labels, weights);
        if (self.numel() == 0) return;
        check_types(self, labels, "multi_margin_loss_cpu_kernel");
        const auto [least, most] = range_of(labels);
        TORCH_CHECK(least >= 0 && most < classes, "target out of range");
        rows = self.reshape({count, classes});
        target = labels.reshape({count, 1});
        const Tensor difference = rows.sub(rows.gather(1, target)).add_(margin);
        violation = at::where(difference.gt(0), difference, 0.0);
        if (weights.has_value() && weights->defined()) {
            TORCH_CHECK(weights->scalar_type() == self.scalar_type(), "expected scalar type ",
                        self.scalar_type(), " but found ", weights->scalar_type());
            weight = weights->reshape(-1).index_select(0, target.view(-1)).unsqueeze(1);
        }
    }
    Tensor weighted(Tensor values) const {
        if (weight.defined()) values.mul_(weight);
        return values.scatter_(1, target, 0.0);
    }
};

// --- multilabel_margin_loss
// ---------------------------------------------------------------------------------

namespace shader = shaders::multilabel_margin_loss;

void launch(const shader::MultilabelMarginKernel& kernel, const Tensor& input, const Tensor& target,
            const Tensor& is_target, const Tensor& output, int64_t classes) {
    TORCH_CHECK(output.numel() <= std::numeric_limits<uint32_t>::max(),
                "multilabel_margin_loss on MPS: ", output.numel(), " elements are more than 2^32 - 1");
    const uint32_t workgroup = kernels::flat_workgroup();
    const shader::MultilabelMarginArgs args{.input = kernels::address(input),
                                            .target = kernels::address(target),
                                            .is_target = kernels::address(is_target),
                                            .output = kernels::address(output),
                                            .count = static_cast<uint64_t>(output.numel()),
                                            .classes = kernels::FastDivider(static_cast<uint32_t>(classes))};
    kernel.call({.workgroup = workgroup, .type = kernels::code(input.scalar_type())})
        .read(input)
        .read(target)
        .read(is_target)
        .write(output)
        .dispatch(args, kernels::flat_grid(args.count));
}

void check_labels(const Tensor& target, int64_t classes) {
    const auto [least, most] = range_of(target);
    TORCH_CHECK(least >= -1 && most < classes, "argument #2 'target' is out of range");
}

}  // namespace

// self [classes] or [rows, classes], target the rows' classes. Any floating dtype.
Tensor& ANYMPS_FUNC(multi_margin_loss_out)(const Tensor& self, const Tensor& target, const Scalar& p,
                                           const Scalar& margin, const std::optional<Tensor>& weight,
                                           int64_t reduction, Tensor& out) {
    const MultiMargin loss(self, target, p, margin, weight);
    const bool scalar = reduction != at::Reduction::None || target.dim() == 0;
    scalar ? out.resize_({}) : out.resize_({loss.count});
    if (self.numel() == 0) return out.zero_();
    const Tensor each = loss.weighted(loss.p == 1 ? loss.violation : loss.violation.square());
    reduce_into(out, each.sum(1, false, at::kFloat).div_(static_cast<double>(loss.classes)), reduction,
                scalar);
    return out;
}

ANYMPS_ROW(multi_margin_loss,
           multi_margin_loss_out(self, target, p, margin, weight, reduction, NewTensor(self.options())))

Tensor& ANYMPS_FUNC(multi_margin_loss_backward_grad_input)(const Tensor& grad_output, const Tensor& self,
                                                           const Tensor& target, const Scalar& p,
                                                           const Scalar& margin,
                                                           const std::optional<Tensor>& weight,
                                                           int64_t reduction, Tensor& grad_input) {
    const MultiMargin loss(self, target, p, margin, weight);
    grad_input.resize_as_(self);
    TORCH_CHECK(grad_input.is_contiguous(), "grad_input must be contiguous");
    if (self.numel() == 0) return grad_input;
    const double each = 1.0 / static_cast<double>(loss.classes);
    const Tensor violated = loss.violation.gt(0).to(self.scalar_type());
    Tensor slope = loss.weighted(loss.p == 1 ? violated.mul(each) : loss.violation.mul(2 * each));
    slope.scatter_(1, loss.target, slope.sum(1, true).neg());
    grad_input.copy_(slope.mul_(factor_of(grad_output, reduction, loss.count)).view(self.sizes()));
    return grad_input;
}

ANYMPS_ROW(multi_margin_loss_backward,
           multi_margin_loss_backward_grad_input(grad_output, self, target, p, margin, weight, reduction,
                                                 NewTensor(self.options())))

// target: the classes of each row, the rest of a row after the first -1 is ignored. is_target: 1 for those
// classes.
std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(multilabel_margin_loss_forward_output)(
    const Tensor& self, const Tensor& target, int64_t reduction, Tensor& output, Tensor& is_target) {
    int64_t count = 0, classes = 0;
    at::native::multilabel_margin_loss_shape_check(count, classes, self.dim(), self, target);
    const bool scalar = reduction != at::Reduction::None || target.dim() <= 1;
    scalar ? output.resize_({}) : output.resize_({count});
    is_target.resize_as_(target);
    TORCH_CHECK(is_target.is_contiguous(), "is_target must be contiguous");
    is_target.zero_();
    if (self.numel() == 0) {
        output.zero_();
        return {output, is_target};
    }
    check_types(self, target, "multilabel_margin_loss_forward_out_frame");
    check_labels(target, classes);
    const Tensor input = self.contiguous(), labels = target.contiguous().view({count, classes});
    // Labels that do not count go to a column more, which is left out.
    const Tensor counts = labels.lt(0).cumsum(1).eq(0);
    const Tensor marks = at::zeros({count, classes + 1}, self.options());
    marks.scatter_(1, at::where(counts, labels, classes), 1.0);
    is_target.copy_(marks.narrow(1, 0, classes).view(target.sizes()));
    const Tensor terms = at::empty({count, classes}, self.options().dtype(at::kFloat));
    launch(shader::multilabel_margin_loss, input, at::where(counts, labels, -1), is_target, terms, classes);
    reduce_into(output, terms.sum(1).div_(static_cast<double>(classes)), reduction, scalar);
    return {output, is_target};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(multilabel_margin_loss_forward)(const Tensor& self,
                                                                       const Tensor& target,
                                                                       int64_t reduction) {
    Tensor output = at::empty({0}, self.options()), is_target = at::empty({0}, self.options());
    return multilabel_margin_loss_forward_output(self, target, reduction, output, is_target);
}

Tensor& ANYMPS_FUNC(multilabel_margin_loss_backward_grad_input)(const Tensor& grad_output, const Tensor& self,
                                                                const Tensor& target, int64_t reduction,
                                                                const Tensor& is_target, Tensor& grad_input) {
    int64_t count = 0, classes = 0;
    at::native::multilabel_margin_loss_shape_check(count, classes, self.dim(), self, target);
    TORCH_CHECK(target.sizes() == is_target.sizes(), "Expected tensor for argument #3 'target' to have same ",
                "size as tensor for argument #5 'is_target'; but ", target.sizes(), " does not equal ",
                is_target.sizes(),
                " (while checking arguments for multilabel_margin_loss_backward_cpu_template)");
    grad_input.resize_as_(self);
    if (grad_input.numel() == 0) return grad_input;
    TORCH_CHECK(grad_input.is_contiguous(), "grad_input must be contiguous");
    check_types(self, target, "multilabel_margin_loss_backward_out_frame");
    check_same_dtype_as(self, is_target);
    check_labels(target, classes);
    const Tensor labels = target.contiguous().view({count, classes});
    const Tensor valid = at::where(labels.lt(0).cumsum(1).eq(0), labels, -1);
    const Tensor slope = at::empty({count, classes}, self.options().dtype(at::kFloat));
    launch(shader::multilabel_margin_loss_backward, self.contiguous(), valid, is_target.contiguous(), slope,
           classes);
    slope.mul_(factor_of(grad_output, reduction, count)).div_(static_cast<double>(classes));
    return grad_input.copy_(slope.view(self.sizes()));
}

ANYMPS_ROW(multilabel_margin_loss_backward,
           multilabel_margin_loss_backward_grad_input(grad_output, self, target, reduction, is_target,
                                                      NewTensor(at::empty(self.sizes(), self.options()))))

}  // namespace anymps::ops
