// Interpolation of all spatial dimensions, in PyTorch's terms of sizes and scale factors.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>

#include "ops/resample/resample.h"

namespace anymps::ops {

// Scale factors (outputs an input), one a spatial dimension; those that are absent follow from the sizes.
using ScaleFactors = std::initializer_list<std::optional<double>>;

// out and self: [N, C, spatial...], one to three spatial dimensions, of one dtype. Raise NotImplementedError
// for types that are neither floating nor uint8, with `op` as the kernel's name. grad_input has self's shape
// and is written whole.
void interpolate(const at::Tensor& out, const at::Tensor& self, ResampleMode mode, ScaleFactors scales,
                 const char* op, bool align_corners = false);
void interpolate_backward(const at::Tensor& grad_input, const at::Tensor& grad_output, ResampleMode mode,
                          ScaleFactors scales, const char* op, bool align_corners = false);

}  // namespace anymps::ops
