// Values at mapped positions along the last dimensions of a tensor: what upsampling and padding share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace anymps::ops {

// The codes of shaders/resample/resample.slang.
enum class ResampleMode : uint32_t {
    Nearest = 0,
    NearestExact,
    Linear,
    Cubic,
    Replicate,
    Reflect,
    LinearAntialias,
    CubicAntialias,
    LanczosAntialias,
};

// How one dimension is mapped. Outputs are those of the forward direction, also in backward.
struct ResampleAxis {
    int64_t input;
    int64_t output;
    float scale = 1;  // inputs an output; interpolation only
    int64_t pad = 0;  // outputs before the first input; padding only
};

// Fills `destination` from `source`, any strides. axes: of the last dimensions, the outermost of them first.
// backward: destination has the inputs' extents and source, the gradient, the outputs'.
void resample(const at::Tensor& destination, const at::Tensor& source, ResampleMode mode,
              std::span<const ResampleAxis> axes, bool align_corners = false, bool backward = false);

}  // namespace anymps::ops
