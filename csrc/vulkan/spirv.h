// Edits of SPIR-V for the device that runs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace anymps::vulkan {

// How a device can be held to treat 32-bit floats (VkPhysicalDeviceFloatControlsProperties).
struct FloatControls {
    bool preserve_nan = false;        // SignedZeroInfNanPreserve: without it a compiler may fold `x != x`
    bool preserve_denormals = false;  // DenormPreserve: without it drivers may flush denormals to zero
};

// The module with these execution modes at every entry point, and their capabilities; no function forbids
// inlining. Throws std::runtime_error for a damaged module.
std::vector<uint32_t> module_for_device(std::span<const uint32_t> spirv, FloatControls controls);

}  // namespace anymps::vulkan
