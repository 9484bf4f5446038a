// Batch norm whose output has a dtype of its own, as autocast wants it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace anymps::ops {

// What ATen's operators are told; undefined where there is none. Running statistics are both defined in
// evaluation.
struct BatchNorm {
    at::Tensor weight, bias, running_mean, running_variance;
    bool training;
    double momentum, eps;

    using Optional = std::optional<at::Tensor>;
    BatchNorm(const Optional& weight, const Optional& bias, const Optional& running_mean,
              const Optional& running_variance, bool training, double momentum, double eps)
        : weight(weight.value_or(at::Tensor())),
          bias(bias.value_or(at::Tensor())),
          running_mean(running_mean.value_or(at::Tensor())),
          running_variance(running_variance.value_or(at::Tensor())),
          training(training),
          momentum(momentum),
          eps(eps) {}
};

// -> (output of that dtype, mean, 1 / sqrt(variance + eps)); the statistics are float32, and empty in
// evaluation.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input, const BatchNorm& norm,
                                                          at::ScalarType dtype);

}  // namespace anymps::ops
