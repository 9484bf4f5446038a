// Edits of SPIR-V for devices that lack what the kernels ask for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace anymps::vulkan {

// Removes the execution mode SignedZeroInfNanPreserve, which the shader compiler gives to every kernel, and
// its capability. On a device without it the driver may then treat NaN and the sign of zero as it likes.
std::vector<uint32_t> without_float_controls(std::span<const uint32_t> spirv);

}  // namespace anymps::vulkan
