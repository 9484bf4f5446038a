// Group norm whose output has a dtype of its own, as autocast wants it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace anymps::ops {

// input: (N, C, HxW) in any number of dimensions. -> (output of that dtype, mean, 1 / sqrt(variance + eps));
// the statistics are float32 of (N, group). Raises the CPU's errors for sizes and dtypes that do not fit.
std::tuple<at::Tensor, at::Tensor, at::Tensor> group_norm(const at::Tensor& input,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, int64_t N,
                                                          int64_t C, int64_t HxW, int64_t group, double eps,
                                                          at::ScalarType dtype);

}  // namespace anymps::ops
