// Sums of short contiguous rows, as planes of 7 x 7 are.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

#include "kernels/route_device.h"

namespace anymps::kernels {

// Whether the kernels take rows of such elements that lie one after the other from an address on.
bool supports_reduce_small_inner(c10::ScalarType type, uint64_t address, uint64_t rows, uint64_t size,
                                 const RouteDevice& device);

// Sums or means of rows, in the order of `out`.
void reduce_small_inner(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t size,
                        bool mean);

}  // namespace anymps::kernels
