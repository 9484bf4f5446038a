// What a norm under autocast was computed from, found by its result. An activation that follows computes the
// float32 result again for its gradient, where PyTorch's own keeps it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kernels/channel_norm.h"

namespace anymps::ops {

struct NormSource {
    at::Tensor input;         // of 16 bits, with the strides of the result
    at::Tensor weight, bias;  // one a channel, float32; may be undefined
    at::Tensor mean;          // float32; one a channel, or (samples, groups)
    at::Tensor deviation;     // 1 / sqrt(variance + eps); the running variance where `training` is false
    bool training = true;     // the statistics are the input's own
    int64_t inner = 1;        // elements of a channel side by side
    int64_t groups = 0;       // of group norm; 0: batch norm
    double eps = 0;
};

// Of this thread's last norm. Nothing is kept alive.
void remember_norm(const at::Tensor& result, const NormSource& source);

// None unless `result` is what the thread's last norm returned, all that it came from lives, and the device
// was given nothing to do since: a write by way of `data` or of a kernel of the user's changes no version.
std::optional<NormSource> source_of_norm(const at::Tensor& result);

// The result by PyTorch's operators, float32, differentiable by input, weight and bias.
at::Tensor norm_again(const NormSource& source);

// The gradient by the norm's result, float32, from `grad`, that by the result of the activation: float32,
// with the strides of the input, which are dense.
at::Tensor norm_activation_backward(const NormSource& source, const at::Tensor& grad,
                                    const kernels::ChannelActivation& activation);

}  // namespace anymps::ops
