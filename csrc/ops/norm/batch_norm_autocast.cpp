// batch_norm under autocast, which hands it floats: computed from 16 bits, and autograd keeps those, where
// PyTorch's own makes a float32 copy. What is unusual stays with PyTorch's way.
#include <ATen/autocast_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <anymps/ops/norm/batch_norm_ops.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/default_dispatch.h"
#include "ops/norm/autocast_norm.h"
#include "ops/norm/batch_norm.h"
#include "ops/norm/norm_source.h"

namespace anymps::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AutocastBatchNorm : torch::autograd::Function<AutocastBatchNorm> {
    static constexpr bool is_traceable = true;

    using Optional = std::optional<Tensor>;

    static Tensor forward(AutogradContext* ctx, const Tensor& input, const Optional& weight,
                          const Optional& bias, const Optional& running_mean, const Optional& running_var,
                          bool training, double momentum, double eps) {
        const at::AutoDispatchBelowADInplaceOrView below;
        const BatchNorm norm(weight, bias, running_mean, running_var, training, momentum, eps);
        auto [out, mean, rstd] = batch_norm(input, norm, at::kFloat);
        ctx->set_materialize_grads(false);
        // The gradient of training does not ask for running statistics, which go on changing.
        ctx->save_for_backward({input, norm.weight, training ? Tensor() : norm.running_mean,
                                training ? Tensor() : norm.running_variance, mean, rstd});
        ctx->saved_data["biased"] = norm.bias.defined();
        ctx->saved_data["training"] = training;
        ctx->saved_data["eps"] = eps;
        if (input.strides() == out.strides()) {
            remember_norm(out, {.input = input,
                                .weight = norm.weight,
                                .bias = norm.bias,
                                .mean = training ? mean : norm.running_mean,
                                .deviation = training ? rstd : norm.running_variance,
                                .training = training,
                                .inner = input.stride(1),
                                .eps = eps});
        }
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &grad = grads[0], &input = saved[0];
        variable_list result(8);
        if (!grad.defined()) return result;
        const bool weighted = saved[1].defined(), biased = ctx->saved_data["biased"].toBool();
        const std::array<bool, 3> wanted{ctx->needs_input_grad(0), weighted && ctx->needs_input_grad(1),
                                         biased && ctx->needs_input_grad(weighted ? 2 : 1)};
        const auto gradients = [&](const auto& of, const Tensor& x) {
            const auto given = [&](size_t i) {
                return saved[i].defined() ? Optional(saved[i]) : std::nullopt;
            };
            return of(grad, x, given(1), given(2), given(3), given(4), given(5),
                      ctx->saved_data["training"].toBool(), ctx->saved_data["eps"].toDouble(), wanted);
        };
        if (!at::GradMode::is_enabled() && has_plain_saved(grad, saved)) {
            std::tie(result[0], result[1], result[2]) = gradients(native_batch_norm_backward, input);
        } else {  // as PyTorch's own
            std::tie(result[0], result[1], result[2]) =
                gradients(at::native_batch_norm_backward, input.to(at::kFloat));
            if (result[0].defined()) result[0] = result[0].to(input.scalar_type());
        }
        return result;
    }
};

// Parameters and statistics as modules have them. Autograd saves no tensor of inference mode.
bool is_usual(const Tensor& input, const BatchNorm& norm) {
    if (!at::isReducedFloatingType(input.scalar_type()) || input.dim() < 2 || input.numel() == 0)
        return false;
    if (norm.running_mean.defined() != norm.running_variance.defined()) return false;
    if (!norm.training && !norm.running_mean.defined()) return false;
    const auto is_constant = [](const Tensor& t) { return !t.defined() || !t.requires_grad(); };
    return is_of_channels(norm.weight, input) && is_of_channels(norm.bias, input) &&
           is_of_channels(norm.running_mean, input) && is_of_channels(norm.running_variance, input) &&
           is_constant(norm.running_mean) && is_constant(norm.running_variance) &&
           !(wants_gradient(input, norm.weight, norm.bias) && input.is_inference());
}

using Signature = decltype(ATEN_FN(batch_norm));
using AutocastToFloat = at::autocast::WrapFunction<at::autocast::CastPolicy::fp32, at::kMPS, Signature,
                                                   Signature, &ATEN_FN(batch_norm)>::type;

Tensor autocast_batch_norm(const Tensor& input, const std::optional<Tensor>& weight,
                           const std::optional<Tensor>& bias, const std::optional<Tensor>& running_mean,
                           const std::optional<Tensor>& running_var, bool training, double momentum,
                           double eps, bool cudnn_enabled) {
    const BatchNorm norm(weight, bias, running_mean, running_var, training, momentum, eps);
    if (!is_usual(input, norm)) {
        return AutocastToFloat::call(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                     cudnn_enabled);
    }
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastMPS);
    if (!wants_gradient(input, norm.weight, norm.bias))
        return std::get<0>(anymps::ops::batch_norm(input, norm, at::kFloat));
    return AutocastBatchNorm::apply(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
    const QuietReplacement quiet;
    m.impl("batch_norm", TORCH_FN((DefaultDispatchOr<&autocast_batch_norm, &AutocastToFloat::call>::call)));
}

}  // namespace
}  // namespace anymps::ops
