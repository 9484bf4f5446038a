// Fake quantization by scales and zero points of the device, shared with the operator that observes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace anymps::ops {

// channels [self.size(axis)] as a tensor that broadcasts along the other dimensions of self.
at::Tensor along(const at::Tensor& channels, const at::Tensor& self, int64_t axis);

// (self quantized and dequantized, whether a value was inside the range). scale, integral zero_point and
// enabled broadcast to self; where enabled is 0, self and true.
std::tuple<at::Tensor, at::Tensor> fake_quantized(const at::Tensor& self, const at::Tensor& scale,
                                                  const at::Tensor& zero_point, const at::Tensor& enabled,
                                                  int64_t quant_min, int64_t quant_max);

}  // namespace anymps::ops
