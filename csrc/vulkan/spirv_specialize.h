// SPIR-V with values for its specialization constants: drivers take long to see what follows from them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace anymps::vulkan {

// The module with constants instead of specialization constants: `values` are pairs of SpecId and 32-bit
// value, the others keep their defaults. Branches that are decided are taken, functions exist once for each
// set of constant arguments they are called with, and what is never reached or never used is left out.
// kept: SpecIds of constants that stay specialization constants, and what follows from them undecided.
// compact: loops are not to be unrolled, and branches that skip little to be flattened, unless the module
// says otherwise. Results of kernels are the same to the bit. A module with instructions that this does not
// know is returned as it is.
std::vector<uint32_t> specialize(std::span<const uint32_t> spirv,
                                 std::span<const std::pair<uint32_t, uint32_t>> values, bool compact,
                                 std::span<const uint32_t> kept = {});

}  // namespace anymps::vulkan
