// Sums of short contiguous rows, as planes of 7 x 7 are.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

namespace anymps::kernels {

// Rows lie one after the other, in the order of `out`. Each returns false, and does nothing, where other
// kernels are to take them.
bool short_row_sums(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t size,
                    bool mean);

// What group norm's gradients need. Rows are the planes of (sample, channel).
struct GroupGradients {
    at::TensorBase grad, x;
    at::TensorBase mean, rstd;      // of (sample, group)
    at::TensorBase weight;          // of channels; may be undefined
    at::TensorBase products, sums;  // results, float32: of grad (x - mean) rstd and grad, for each row
    at::TensorBase group_products, group_sums;  // ... times the weight, for each (sample, group)
    uint64_t rows, size, depth, channels;       // depth: channels of a group
};
bool short_row_gradients(const GroupGradients& g);

}  // namespace anymps::kernels
