// Tiles of the contraction kernels, as data, and the choice among them.
#pragma once

#include <cstdint>

#include "vulkan/instance.h"

namespace anymps::ops {

// One way to run a contraction: shaders/lib/contract.slang (register, subgroup), contract_shared.slang
// (shared).
struct Tile {
    const char* kernel;  // the kernels' names: matmul_<kernel>_f32, conv_<kernel>_f32, ...
    uint32_t m, n;       // results of a workgroup
    uint32_t workgroup;  // invocations
    uint32_t cost;       // of a workgroup and one k, in any unit, whether its results are all needed or not
};

// True where tiles stage factors in shared memory: on GPUs. The environment variable ANYMPS_TILES=gpu chooses
// them on a CPU driver too, for tests.
bool uses_shared_memory(const vulkan::DeviceInfo& device);

struct Problem {
    uint64_t batch = 1, m = 1, n = 1, k = 0;
    bool floating = true;                // f32 arithmetic
    bool may_swap = false;               // rows and columns may change places
    bool k_contiguous = false;           // both factors follow one another along k
    uint64_t longest_part = UINT32_MAX;  // short sums keep the small terms of long ones
};

// How a problem is cut.
struct Plan {
    const Tile* tile;
    bool swapped;
    uint32_t parts;   // of k, summed by a second kernel
    uint32_t part_k;  // length of a part, a multiple of 16
};

// The plan of least modelled time among the device's tiles.
Plan choose_plan(const vulkan::DeviceInfo& device, const Problem& problem);

// Workgroups of a plan.
uint64_t plan_groups(const vulkan::DeviceInfo& device, const Plan& plan, uint64_t batch, uint64_t m,
                     uint64_t n);

}  // namespace anymps::ops
