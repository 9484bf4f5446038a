// What the choice of kernels for norms depends on, and the kernels that a device would run.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "kernels/group_gradients.h"
#include "kernels/reduce_nc_hw.h"
#include "kernels/route_device.h"

namespace anymps::ops {

// Dense images [images, channels, positions], or with channels last [samples, channels], which are planes of
// one position then.
struct BatchNormProblem {
    c10::ScalarType type;
    uint64_t address;
    bool channels_last;
    kernels::Planes planes;
    c10::ScalarType grad_type = c10::ScalarType::Float;  // of the backward pass, as what follows
    uint64_t grad_address = 0;
    bool float_statistics = true;  // mean and rstd are float32: running ones have the dtype of their module
};

// Rows of `size` elements that are normalized; tensors are contiguous where nothing else is said.
struct LayerNormProblem {
    c10::ScalarType type;
    uint64_t rows, size;
    bool contiguous_vectors;  // input, output and parameters: of one dtype, each from a multiple of 16 bytes
                              // on
    bool float_statistics;    // contiguous, too
};

// The gradients of input, weight and bias.
struct LayerNormGradients {
    c10::ScalarType type;
    uint64_t rows, size;
    bool input, parameters;   // which of them are asked for
    bool contiguous_vectors;  // of four elements, all tensors
    bool same_types;          // of grad and input, and of the parameters; statistics are float32
};

// For ANYMPS_LOG=plan.
std::string to_text(const BatchNormProblem& problem);
std::string to_text(const LayerNormProblem& problem);
std::string to_text(const LayerNormGradients& problem);

// The names of the routes that a device takes, a row each of batch_norm.cpp, group_norm.cpp, layer_norm.cpp.
const char* batch_norm_statistics_route(const BatchNormProblem& problem, const kernels::RouteDevice& device);
const char* batch_norm_backward_route(const BatchNormProblem& problem, const kernels::RouteDevice& device);
const char* group_norm_backward_route(const kernels::GroupShape& shape, const kernels::RouteDevice& device);
const char* layer_norm_route(const LayerNormProblem& problem, const kernels::RouteDevice& device);
const char* layer_norm_backward_route(const LayerNormGradients& problem, const kernels::RouteDevice& device);

}  // namespace anymps::ops
