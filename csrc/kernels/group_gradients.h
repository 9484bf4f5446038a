// What group norm's gradients need of groups that a workgroup keeps in registers.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>

namespace anymps::kernels {

// Tensors are contiguous. Rows are the planes of (sample, channel).
struct GroupGradients {
    at::TensorBase grad, x;
    at::TensorBase mean, rstd;             // of (sample, group)
    at::TensorBase weight;                 // of channels; may be undefined
    at::TensorBase products, sums;         // results, float32: of grad (x - mean) rstd and grad, for each row
    at::TensorBase grad_x;                 // result; may be undefined
    uint64_t rows, size, depth, channels;  // depth: channels of a group
};

// Returns false, and does nothing, where other kernels are to take them.
bool group_gradients(const GroupGradients& g);

}  // namespace anymps::kernels
