// GEMM tile tables: which kernels there are for a problem, and what they cost.
#pragma once

#include <vector>

#include "gemm/tiles.h"

namespace anymps::gemm {

// Tiles that a device can use for a problem, not those of few rows. Where the device's profile excludes all,
// none is left out: there is another reason then why this device gets no such problem.
std::vector<const Tile*> usable_tiles(const vulkan::DeviceInfo& device, const GemmProblem& problem);

// For few results: each is a subgroup's.
const Tile& subgroup_tile(const vulkan::DeviceInfo& device);

// For at most kFewRows rows of results, and a `b` that is contiguous along n.
const Tile& vector_tile(uint64_t rows);
constexpr uint64_t kFewRows = 4;

// For the output tiles of `scaled` whose operands scaled f16 cannot hold.
const Tile& fallback_tile(const vulkan::DeviceInfo& device, Arithmetic arithmetic, const Tile& scaled);

}  // namespace anymps::gemm
