// Which calls of norms under autocast have kernels of ours: 16-bit inputs, float32 parameters and results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <ranges>

#include "ops/default_dispatch.h"

namespace anymps::ops {

// Undefined tensors ask for none.
inline bool wants_gradient(const auto&... tensors) {
    return at::GradMode::is_enabled() && (... || (tensors.defined() && tensors.requires_grad()));
}

// As modules have weights, biases and running statistics; undefined ones, too.
inline bool is_of_channels(const at::Tensor& parameter, const at::Tensor& input) {
    return !parameter.defined() || (parameter.scalar_type() == at::kFloat && parameter.dim() == 1 &&
                                    parameter.size(0) == input.size(1) && parameter.is_contiguous());
}

// Whether gradients can be computed from what was saved, the input first: hooks and transforms may have made
// anything of it.
inline bool has_plain_saved(const at::Tensor& grad, const torch::autograd::variable_list& saved) {
    const auto is_float = [](const at::Tensor& t) {
        return has_default_dispatch(t) && t.scalar_type() == at::kFloat;
    };
    const at::Tensor& input = saved[0];
    return no_mode_is_active() && is_float(grad) && has_default_dispatch(input) &&
           at::isReducedFloatingType(input.scalar_type()) && grad.sizes() == input.sizes() &&
           std::ranges::all_of(saved | std::views::drop(1),
                               [&](const at::Tensor& t) { return !t.defined() || is_float(t); });
}

}  // namespace anymps::ops
