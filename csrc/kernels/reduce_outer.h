// Sums of the columns of a matrix of floats, whose rows are whole words of 16 bytes.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

#include "kernels/channel_norm.h"
#include "kernels/route_device.h"

namespace anymps::kernels {

struct Matrix {
    c10::ScalarType type;
    uint64_t address;
    uint64_t rows, columns;
    int64_t row_stride;  // bytes
};

// Each false where the kernels do not take the matrix, or gain nothing; of moments it is a dense one.
bool supports_reduce_outer(const Matrix& matrix, const RouteDevice& device);
bool supports_reduce_outer_moments(const Matrix& matrix, const RouteDevice& device);

// in: the storage. Results lie side by side in out.
void reduce_outer(const at::TensorBase& in, const Matrix& matrix, const at::TensorBase& out);

// Means and biased variances of the columns, as results in float32, and what follows from them.
void reduce_outer_moments(const at::TensorBase& in, const Matrix& matrix,
                          const ChannelStatistics& statistics);

}  // namespace anymps::kernels
