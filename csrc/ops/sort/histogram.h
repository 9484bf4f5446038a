#pragma once

#include <ATen/core/Tensor.h>

namespace anymps::ops {

// int32 or int64 [bins]: how often least, least + 1, ... occur in `values`, dense, of a type of whole numbers
// that has no others.
at::Tensor count_integers(const at::Tensor& values, int64_t least, int64_t bins);

// The smallest and the largest element as a tensor of two, on the host. Waits for the device.
at::Tensor extremes(const at::Tensor& values);

}  // namespace anymps::ops
