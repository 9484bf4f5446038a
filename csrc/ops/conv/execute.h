// Plans of convolutions for tensors: made once for all calls of the same problem, then executed for each.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>

#include "ops/conv/plan.h"

namespace anymps::ops {

Memory memory_of(const at::TensorBase& tensor, int32_t buffer);
inline ConvTensor activation_of(const at::TensorBase& tensor, int64_t groups, int32_t buffer) {
    return activation_of(memory_of(tensor, buffer), tensor.sizes(), tensor.strides(), groups);
}
inline ConvTensor filter_of(const at::TensorBase& tensor, int64_t groups, int32_t buffer) {
    return filter_of(memory_of(tensor, buffer), tensor.sizes(), tensor.strides(), groups);
}

// The device of this process.
ConvDevice conv_device();

// Tensors of a call by GivenBuffer; those that the problem does not have may be undefined.
using GivenTensors = std::array<at::Tensor, kGiven>;

// The plan for a problem on the current device, remembered. Thread-safe. Raises NotImplementedError for bool
// and complex, RuntimeError for sizes beyond the device's.
std::shared_ptr<const ConvPlan> plan_for(const ConvProblem& problem);

// Has the device's driver compile the kernels. Throws vulkan::Error where the device cannot run one.
void prepare(ConvPlan& plan);

// Records all passes of a plan that is prepared.
void execute(const ConvPlan& plan, const GivenTensors& given);

}  // namespace anymps::ops
