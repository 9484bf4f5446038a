// Depthwise convolutions: groups of one channel of x each.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/conv_params.h"

namespace anymps::ops {

// True where these kernels are the better ones: few channels of y a group, floating types, a GPU.
bool is_depthwise(const at::Tensor& weight, int64_t groups);

// y from x; or x from y where `gradient` is set. `bias` (or nullptr) is added to `out`.
void depthwise(const at::Tensor& image, const at::Tensor& weight, const at::Tensor* bias,
               const at::Tensor& out, const ConvParams& axes, bool gradient);

// The gradient of the weight into `out`. Partial sums are added in a fixed order.
void depthwise_weight(const at::Tensor& x, const at::Tensor& y, const at::Tensor& out,
                      const ConvParams& axes);

}  // namespace anymps::ops
