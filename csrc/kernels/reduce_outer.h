// Sums of the columns of a matrix of floats, whose rows are whole words of 16 bytes.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

#include "kernels/channel_norm.h"

namespace anymps::kernels {

// in: its type and storage; the matrix begins at its address. Results lie side by side in out. False where
// the kernels do not take the matrix, or gain nothing.
bool reduce_outer(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t columns,
                  int64_t row_stride);

// Means and biased variances of the columns of a dense matrix, as results in float32, and what follows from
// them. False as above.
bool reduce_outer_moments(const at::TensorBase& in, uint64_t rows, uint64_t columns,
                          const ChannelStatistics& statistics);

}  // namespace anymps::kernels
