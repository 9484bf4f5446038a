// Sums of short contiguous rows, as planes of 7 x 7 are.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

namespace anymps::kernels {

// Rows lie one after the other, in the order of `out`. Returns false, and does nothing, where other kernels
// are to take them.
bool reduce_small_inner(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t size,
                        bool mean);

}  // namespace anymps::kernels
