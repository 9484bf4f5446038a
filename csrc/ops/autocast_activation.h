// What activations under autocast share whose gradients keep less than PyTorch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/default_dispatch.h"

namespace anymps::ops {

constexpr int64_t kSmallestKept = 64 << 10;  // elements whose memory counts

// A plain call whose gradient is asked for, of a tensor that is worth it.
inline bool may_keep_less(const at::Tensor& input) {
    return no_mode_is_active() && is_default_argument(input) && at::GradMode::is_enabled() &&
           input.requires_grad() && input.numel() >= kSmallestKept;
}

inline c10::DispatchKeySet keys_below(c10::DispatchKey key, c10::DispatchKeySet keys) {
    return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

// Of an in-place activation that ran below autograd.
inline void mark_changed(torch::autograd::AutogradContext* ctx, const at::Tensor& out) {
    out.unsafeGetTensorImpl()->bump_version();
    ctx->mark_dirty({out});
}

}  // namespace anymps::ops
