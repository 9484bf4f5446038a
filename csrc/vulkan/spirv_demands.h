// What a SPIR-V module asks of the device that runs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace anymps::vulkan {

// Bytes of shared memory of a module.
uint32_t shared_memory_of(std::span<const uint32_t> spirv);

// The module asks no longer for arithmetic in halves, but for halves in memory: loads, stores and
// conversions.
void keep_halves_in_memory(std::vector<uint32_t>& spirv);

}  // namespace anymps::vulkan
