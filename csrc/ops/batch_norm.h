// Batch norm whose output has a dtype of its own, as autocast wants it.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace anymps::ops {

// Undefined: none. Running statistics, in evaluation both defined, are dense.
struct BatchNorm {
    at::Tensor weight, bias, running_mean, running_variance;
    bool training;
    double momentum, eps;
};

// -> (output of that dtype, mean, 1 / sqrt(variance + eps)); the statistics are float32, and empty in
// evaluation.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input, const BatchNorm& norm,
                                                          at::ScalarType dtype);

}  // namespace anymps::ops
