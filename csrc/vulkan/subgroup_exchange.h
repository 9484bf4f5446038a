// Subgroup operations by way of shared memory, for devices that have only the basic ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace anymps::vulkan {

// The module with its shuffles, ballots and sums over a subgroup done by stores, subgroup barriers and loads
// of shared memory (4 bytes a thread), for subgroups of `lanes`, a power of two. What these operations ask of
// a kernel holds here too: all lanes of a subgroup reach them together. Throws Error at any other operation
// beyond the basic ones. `in_step`: a subgroup's lanes execute together, so that a memory barrier suffices.
std::vector<uint32_t> exchange_in_shared_memory(std::span<const uint32_t> spirv, uint32_t lanes,
                                                bool in_step);

}  // namespace anymps::vulkan
