// cross_entropy by class indices with one gradient: PyTorch's own goes through nll_loss's, an array of zeros
// but for one element a row. What is unusual stays with PyTorch's composite.
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <anymps/shaders/loss/cross_entropy.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/default_dispatch.h"
#include "ops/loss/nll_loss.h"

namespace anymps::ops {
namespace {

using at::ScalarType;
using at::Tensor;
using kernels::address;
using kernels::address_or_0;
using kernels::code;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace shader = shaders::cross_entropy;

// log_softmax's gradient of nll_loss's: exp(y) times what the row's loss asks for, less that at the target.
Tensor gradient(const Tensor& loss_grad, const Tensor& y, const Tensor& target, const Tensor& weight,
                const Tensor& total_weight, int64_t reduction, int64_t ignored) {
    Tensor grad = at::empty_like(y);
    const auto rows = static_cast<uint64_t>(y.size(0)), size = static_cast<uint64_t>(y.size(1));
    const bool is_float = y.scalar_type() == at::kFloat;
    const uint32_t item = kernels::floats_per_vector(y.scalar_type());  // elements a vector
    const auto& t = kernels::launch_config();
    const uint64_t words = size / item + 1;
    const uint32_t lanes = kernels::power_of_two(kernels::ceil_div(words, shader::kPrefetch), t.workgroup);
    const uint64_t parts = kernels::ceil_div(words, uint64_t{lanes} * shader::kPrefetch);
    const bool mean = reduction == at::Reduction::Mean;
    const shader::CrossEntropyArgs args{.y = address(y),
                                        .grad = address(grad),
                                        .target = address(target),
                                        .weight = address_or_0(weight),
                                        .loss_grad = address(loss_grad),
                                        .total_weight = mean ? address(total_weight) : 0,
                                        .ignored = ignored,
                                        .size = static_cast<uint32_t>(size),
                                        .loss_stride = reduction == at::Reduction::None ? 1u : 0u,
                                        .count = kernels::group_count(rows * parts),
                                        .parts = kernels::FastDivider(static_cast<uint32_t>(parts))};
    auto call = (is_float ? shader::cross_entropy_backward_f32 : shader::cross_entropy_backward_16)
                    .call({.workgroup = t.workgroup,
                           .subgroup = t.subgroup,
                           .type0 = code(y.scalar_type()),
                           .lanes = lanes,
                           .log = 1,
                           .target_type = code(target.scalar_type()),
                           .loss_type = code(loss_grad.scalar_type())});
    call.read(y).read(target).read(weight).read(loss_grad).write(grad);
    if (mean) call.read(total_weight);
    call.dispatch(args, kernels::Grid::linear(kernels::ceil_div(rows * parts, t.workgroup / lanes)));
    return grad;
}

// Whether autocast hands nll_loss floats where the scores have 16 bits.
bool takes_floats(ScalarType scores) {
    return scores != at::kFloat && at::autocast::is_autocast_enabled(at::kMPS);
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
    static constexpr bool is_traceable = true;

    // The loss, and log_softmax's result as an output of its own, so that second derivatives find their way
    // to it.
    static variable_list forward(AutogradContext* ctx, const Tensor& self, const Tensor& target,
                                 const std::optional<Tensor>& weight, int64_t reduction, int64_t ignored) {
        const at::AutoDispatchBelowADInplaceOrView below;
        Tensor y = at::_log_softmax(self, 1, false);
        auto [loss, total_weight] = takes_floats(y.scalar_type())
                                        ? nll_loss_in_float(y, target, Tensor(), reduction, ignored)
                                        : at::nll_loss_forward(y, target, weight, reduction, ignored);
        ctx->set_materialize_grads(false);
        ctx->save_for_backward({y, target, weight.value_or(Tensor()), total_weight});
        ctx->saved_data["reduction"] = reduction;
        ctx->saved_data["ignored"] = ignored;
        return {loss, y};
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &y = saved[0], &target = saved[1], &weight = saved[2], &total_weight = saved[3];
        const int64_t reduction = ctx->saved_data["reduction"].toInt(),
                      ignored = ctx->saved_data["ignored"].toInt();
        const Tensor &loss_grad = grads[0], &y_grad = grads[1];
        Tensor result;
        if (loss_grad.defined() && !y_grad.defined() && takes(loss_grad, y, target, weight, total_weight)) {
            result = gradient(loss_grad.contiguous(), y, target, weight, total_weight, reduction, ignored);
        } else if (loss_grad.defined() || y_grad.defined()) {  // as PyTorch's own
            Tensor sum = y_grad;
            if (loss_grad.defined()) {
                const auto classes = weight.defined() ? std::optional(weight) : std::nullopt;
                sum = at::nll_loss_backward(loss_grad, y.to(loss_grad.scalar_type()), target, classes,
                                            reduction, ignored, total_weight)
                          .to(y.scalar_type());
                if (y_grad.defined()) sum = sum + y_grad;
            }
            result = at::_log_softmax_backward_data(sum, y, 1, y.scalar_type());
        }
        return {result, Tensor(), Tensor(), Tensor(), Tensor()};
    }

    // Hooks and transforms may have made anything of what was saved.
    static bool takes(const Tensor& loss_grad, const Tensor& y, const Tensor& target, const Tensor& weight,
                      const Tensor& total_weight) {
        const auto are_alike = [](const Tensor& a, const Tensor& b) {
            return has_default_dispatch(a) && has_default_dispatch(b) && a.scalar_type() == b.scalar_type();
        };
        return !at::GradMode::is_enabled() && no_mode_is_active() && has_default_dispatch(target) &&
               are_alike(loss_grad, total_weight) && are_alike(y, weight.defined() ? weight : y) &&
               y.is_contiguous() && address(y) % 16 == 0;
    }
};

// Two dimensions, as F.cross_entropy(logits.view(-1, classes), targets) has them.
bool is_usual(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight,
              double smoothing) {
    const ScalarType type = self.scalar_type();
    if (!at::GradMode::is_enabled() || !self.requires_grad() || smoothing != 0.0 || self.dim() != 2 ||
        target.dim() != 1)
        return false;
    if (self.size(0) != target.size(0) || self.numel() == 0 || !self.is_contiguous()) return false;
    if (type != at::kFloat && !at::isReducedFloatingType(type)) return false;
    if (target.scalar_type() != at::kLong || !target.is_contiguous()) return false;
    if (!weight || !weight->defined()) return true;
    return !takes_floats(type) && !weight->requires_grad() && weight->is_contiguous() &&
           weight->scalar_type() == type;
}

constexpr auto kComposite = &at::compositeimplicitautograd::cross_entropy_loss_symint;

Tensor cross_entropy_loss(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight,
                          int64_t reduction, c10::SymInt ignore_index, double label_smoothing) {
    if (is_usual(self, target, weight, label_smoothing))
        return CrossEntropy::apply(self, target, weight, reduction, ignore_index.expect_int())[0];
    return kComposite(self, target, weight, reduction, std::move(ignore_index), label_smoothing);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    m.impl("cross_entropy_loss", TORCH_FN((DefaultDispatchOr<&cross_entropy_loss, kComposite>::call)));
}

}  // namespace
}  // namespace anymps::ops
