// What a SPIR-V module asks of the device that runs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vulkan/api.h"

namespace anymps::vulkan {

// Bytes of shared memory of a module whose specialization constant i has value i of specialization.
uint32_t shared_memory_of(std::span<const uint32_t> spirv, std::span<const uint32_t> specialization = {});

// The kinds of subgroup operations of a module.
VkSubgroupFeatureFlags subgroup_features_of(std::span<const uint32_t> spirv);

// Whether the module asks for a capability, by its number in the specification of SPIR-V.
constexpr uint32_t kFloat16Capability = 9, kCooperativeMatrixCapability = 6022;
bool has_capability(std::span<const uint32_t> spirv, uint32_t capability);

// Whether invocations of the module work together in subgroups, on matrices or otherwise.
bool works_in_subgroups(std::span<const uint32_t> spirv);

// The module asks no longer for arithmetic in halves, but for halves in memory: loads, stores and
// conversions. A module that reinterprets halves as bits, or the reverse, stays as it is.
void keep_halves_in_memory(std::vector<uint32_t>& spirv);

}  // namespace anymps::vulkan
