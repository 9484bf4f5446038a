// group_norm under autocast, which hands it floats: computed from 16 bits, and autograd keeps those, where
// PyTorch's own keeps a float32 copy. What is unusual stays with PyTorch's way.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "ops/default_dispatch.h"
#include "ops/norm/autocast_norm.h"
#include "ops/norm/group_norm.h"
#include "ops/norm/norm_source.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<Tensor>;

int64_t positions(const Tensor& input) {
    return c10::multiply_integers(input.sizes().slice(2));
}

// Gradients by input, weight and bias, through operators that have gradients themselves.
std::array<Tensor, 3> differentiable_gradients(const Tensor& grad_any, const Tensor& input,
                                               const Tensor& weight, int64_t groups, double eps) {
    const int64_t N = input.size(0), C = input.size(1);
    const auto grouped = [&](const Tensor& t) { return t.reshape({N, groups, C / groups, -1}); };
    const Tensor x = grouped(input.to(at::kFloat)), grad = grouped(grad_any);
    const auto [variance, mean] = at::var_mean(x, at::OptionalIntArrayRef({2, 3}), at::Scalar(0), true);
    const Tensor rstd = at::rsqrt(variance + eps), z = (x - mean) * rstd;
    const Tensor h = weight.defined() ? grad * weight.view({1, groups, C / groups, 1}) : grad;
    const auto average = [](const Tensor& t) { return t.mean({2, 3}, true); };
    const Tensor grad_input = rstd * (h - average(h) - z * average(h * z));
    return {grad_input.reshape(input.sizes()).to(input.scalar_type()), (grad * z).sum({0, 3}).view({C}),
            grad.sum({0, 3}).view({C})};
}

// -> (output, mean, rstd), float32.
std::tuple<Tensor, Tensor, Tensor> normalized(const Tensor& input, const Optional& weight,
                                              const Optional& bias, int64_t groups, double eps) {
    return group_norm(input, weight, bias, input.size(0), input.size(1), positions(input), groups, eps,
                      at::kFloat);
}

struct AutocastGroupNorm : torch::autograd::Function<AutocastGroupNorm> {
    static constexpr bool is_traceable = true;

    static Tensor forward(AutogradContext* ctx, const Tensor& input, const Optional& weight,
                          const Optional& bias, int64_t groups, double eps) {
        const at::AutoDispatchBelowADInplaceOrView below;
        auto [out, mean, rstd] = normalized(input, weight, bias, groups, eps);
        const Tensor w = weight.value_or(Tensor());
        ctx->set_materialize_grads(false);
        ctx->save_for_backward({input, w, mean, rstd});
        ctx->saved_data["groups"] = groups;
        ctx->saved_data["eps"] = eps;
        if (input.is_contiguous() && out.is_contiguous()) {
            remember_norm(out, {.input = input,
                                .weight = w,
                                .bias = bias.value_or(Tensor()),
                                .mean = mean,
                                .deviation = rstd,
                                .inner = positions(input),
                                .groups = groups,
                                .eps = eps});
        }
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &grad = grads[0], &input = saved[0], &weight = saved[1];
        variable_list result(5);
        if (!grad.defined()) return result;
        const int64_t groups = ctx->saved_data["groups"].toInt();
        if (at::GradMode::is_enabled()) {
            auto [x, w, b] =
                differentiable_gradients(grad, input, weight, groups, ctx->saved_data["eps"].toDouble());
            result[0] = x;
            if (weight.defined()) std::tie(result[1], result[2]) = std::pair(w, b);
            return result;
        }
        const bool affine = weight.defined();
        const std::array<bool, 3> wanted{ctx->needs_input_grad(0), affine && ctx->needs_input_grad(1),
                                         affine && ctx->needs_input_grad(2)};
        const bool as_saved = has_plain_saved(grad, saved);
        std::tie(result[0], result[1], result[2]) =
            at::native_group_norm_backward(grad, as_saved ? input : input.to(at::kFloat), saved[2], saved[3],
                                           affine ? Optional(weight) : std::nullopt, input.size(0),
                                           input.size(1), positions(input), groups, wanted);
        if (!as_saved && result[0].defined()) result[0] = result[0].to(input.scalar_type());
        return result;
    }
};

bool is_usual(const Tensor& input, int64_t groups, const Tensor& weight, const Tensor& bias, bool trains) {
    if (!at::isReducedFloatingType(input.scalar_type()) || input.dim() < 2 || input.numel() == 0)
        return false;
    if (groups <= 0 || input.size(1) % groups != 0 || weight.defined() != bias.defined()) return false;
    return is_of_channels(weight, input) && is_of_channels(bias, input) && !(trains && input.is_inference());
}

using Signature = Tensor(const Tensor&, int64_t, const Optional&, const Optional&, double, bool);
using AutocastToFloat = at::autocast::WrapFunction<at::autocast::CastPolicy::fp32, at::kMPS, Signature,
                                                   Signature, &ATEN_FN(group_norm)>::type;

Tensor autocast_group_norm(const Tensor& input, int64_t groups, const Optional& weight, const Optional& bias,
                           double eps, bool cudnn_enabled) {
    const Tensor w = weight.value_or(Tensor()), b = bias.value_or(Tensor());
    const bool trains = wants_gradient(input, w, b);
    if (!is_usual(input, groups, w, b, trains))
        return AutocastToFloat::call(input, groups, weight, bias, eps, cudnn_enabled);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastMPS);
    if (trains) return AutocastGroupNorm::apply(input, weight, bias, groups, eps);
    return std::get<0>(normalized(input, weight, bias, groups, eps));
}

TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
    const QuietReplacement quiet;
    m.impl("group_norm", TORCH_FN((DefaultDispatchOr<&autocast_group_norm, &AutocastToFloat::call>::call)));
}

}  // namespace
}  // namespace anymps::ops
