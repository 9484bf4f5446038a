// Which specialization constants the loops over cooperative matrices depend on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace anymps::vulkan {

// SpecIds, ascending, of the constants that reach an innermost loop with a multiplication of cooperative
// matrices: those that it names, that what it reads was computed from before, and that decided which of
// several values that is. What follows its last multiplication, an epilogue say, does not count. Drivers that
// schedule such a loop before they know the constants see the same loop whether the others are known or not.
std::vector<uint32_t> constants_of_matrix_loops(std::span<const uint32_t> spirv);

}  // namespace anymps::vulkan
