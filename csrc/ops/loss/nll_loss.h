// Negative log likelihood for cross_entropy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace anymps::ops {

// The loss of scores [batch, classes] and the total weight, both float32 whatever the scores are, as nll_loss
// has them under autocast. Weights of classes have the scores' dtype or are undefined.
std::tuple<at::Tensor, at::Tensor> nll_loss_in_float(const at::Tensor& self, const at::Tensor& target,
                                                     const at::Tensor& weight, int64_t reduction,
                                                     int64_t ignore_index);

}  // namespace anymps::ops
