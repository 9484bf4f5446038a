// What the choice of kernels for softmax depends on, and the kernels that a device would run.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "kernels/route_device.h"

namespace anymps::ops {

struct SoftmaxProblem {
    c10::ScalarType type;  // of self, or of grad
    uint64_t rows, size;   // size: elements of a row
    bool backward;
    bool innermost;      // rows lie along the last dimension
    bool contiguous;     // all tensors, which have one dtype
    bool aligned_alike;  // their words of 16 bytes begin at the same elements,
    bool aligned;        // the first ones at the tensor's beginning
};

// For ANYMPS_LOG=plan.
std::string to_text(const SoftmaxProblem& problem);
// The name of the route of softmax.cpp that a device takes; softmax and log_softmax have the same.
const char* softmax_route(const SoftmaxProblem& problem, const kernels::RouteDevice& device);

}  // namespace anymps::ops
