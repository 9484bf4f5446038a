// Sums of the columns of a matrix of floats, whose rows are whole words of 16 bytes.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

namespace anymps::kernels {

// in: its type and storage; the matrix begins at its address. Results lie side by side in out. False where
// the kernels do not take the matrix, or gain nothing.
bool column_sums(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t columns,
                 int64_t row_stride);

}  // namespace anymps::kernels
