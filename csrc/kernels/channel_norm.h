// Host side of shaders/norm/channel_norm.slang: what batch and group norm do to every element.
#pragma once

#include <ATen/core/TensorBase.h>
#include <anymps/shaders/lib/statistics.h>

#include <array>
#include <cstdint>
#include <string>

#include "kernels/kernel_call.h"

namespace anymps::kernels {

// How a dense tensor is made of channels: (batch, channel, inner), or channels-last with inner = 1.
struct ChannelNorm {
    int64_t channels;
    int64_t inner;
    int64_t depth = 0;  // channels a group (group norm); 0: a statistic is that of a channel
    double eps = 0;
    bool variance = false;           // the deviation is a variance, not its inverse root
    at::TensorBase mean, deviation;  // one element a statistic, dense
    at::TensorBase weight, bias;     // one a channel, dense; may be undefined
    at::TensorBase sums, products;   // backward: sums of h and of h z, float32; undefined: fixed statistics
    double inverse_size = 1;         // 1 / elements a statistic
};

// What decides how a kernel finds the channels of neighbouring elements.
struct ChannelProblem {
    int64_t channels, inner;
    int64_t count;  // elements
};
std::string to_text(const ChannelProblem& problem);
const char* channel_norm_access(const ChannelProblem& problem);

// y = (x - mean) rstd w + b; x and y have the same strides, each a dtype of its own.
void channel_norm_forward(const ChannelNorm& norm, const at::TensorBase& x, const at::TensorBase& y);

// Gradient of x, which has its dtype, from that of y; all three have the same strides.
void channel_norm_backward(const ChannelNorm& norm, const at::TensorBase& grad, const at::TensorBase& x,
                           const at::TensorBase& grad_x);

// An activation of y: shaders::channel_norm::kSilu and so on, with its parameters in ATen's order.
struct ChannelActivation {
    uint32_t code;
    std::array<float, 2> parameters;
};

// grad_y, the gradient by y = (x - mean) rstd w + b of an activation of y, from that by its result. x, grad
// and grad_y have the same strides, the gradients one dtype.
void channel_norm_activation_backward(const ChannelNorm& norm, const ChannelActivation& activation,
                                      const at::TensorBase& x, const at::TensorBase& grad,
                                      const at::TensorBase& grad_y);

struct ChannelStatistics {
    at::TensorBase mean;                            // float32; only for running_mean
    at::TensorBase variance;                        // biased
    at::TensorBase rstd;                            // result, float32; may be undefined
    at::TensorBase running_mean, running_variance;  // updated; may be undefined
    double eps = 0, momentum = 0;
    double correction = 1;  // n / (n - 1)
};
void channel_norm_statistics(const ChannelStatistics& statistics);

// For kernels that find the moments, too: these are results then.
using StatisticsWords = shaders::statistics::Statistics;
StatisticsWords words_of(const ChannelStatistics& statistics);
void write_statistics(KernelCall& call, const ChannelStatistics& statistics);

inline uint32_t code_or_0(const at::TensorBase& tensor) {
    return tensor.defined() ? code(tensor.scalar_type()) : 0;
}

}  // namespace anymps::kernels
