// What group norm's gradients need of groups that a workgroup keeps in registers.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>
#include <string>

#include "kernels/route_device.h"

namespace anymps::kernels {

// Tensors are contiguous. Rows are the planes of (sample, channel).
struct GroupGradients {
    at::TensorBase grad, x;         // [rows, size], of one floating dtype, or x of 16 bits and grad float32
    at::TensorBase mean, rstd;      // [rows / depth], of (sample, group)
    at::TensorBase weight;          // [channels]; may be undefined
    at::TensorBase products, sums;  // results [rows], float32: of grad (x - mean) rstd and grad, for each row
    at::TensorBase grad_x;          // result, as x; may be undefined
};

struct GroupShape {
    c10::ScalarType type, grad_type;
    bool float_statistics;           // mean and rstd are float32
    uint64_t address, grad_address;  // of x and grad
    uint64_t rows, size;             // of elements
    uint64_t depth, channels;        // depth: channels of a group
};

std::string to_text(const GroupShape& shape);

// Whether a workgroup can keep such groups in registers; only then may group_gradients be called.
bool supports_group_gradients(const GroupShape& shape, const RouteDevice& device);
void group_gradients(const GroupShape& shape, const GroupGradients& tensors);

}  // namespace anymps::kernels
