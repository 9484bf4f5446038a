// How threads share rows: what is worth a workgroup on this kind of device, and how many threads a row gets.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "runtime/grid.h"

namespace anymps::kernels {

struct LaunchConfig {
    bool software;       // no barriers: a workgroup is a subgroup
    uint32_t workgroup;  // threads
    uint32_t subgroup;
    uint32_t columns;         // threads side by side, at most
    uint64_t target_groups;   // enough to fill the device
    uint32_t prefetch_loads;  // that a thread of a reduction issues before it uses the first
    uint64_t min_chunk;       // elements that a workgroup should see before a reduction is split further
};

// Of the current device; read once.
const LaunchConfig& launch_config();

using runtime::ceil_div;

// The power of two at or above n, within [1, at_most] (a power of two).
uint32_t power_of_two(uint64_t n, uint32_t at_most);

// Threads for each of `rows` rows of `loads` loads: up to a subgroup, or the whole workgroup where rows are
// long or few.
uint32_t threads_per_row(uint64_t rows, uint64_t loads);

// Threads side by side for `columns` columns; the rest of the workgroup shares their elements.
uint32_t threads_of_columns(uint64_t columns);

// A number of workgroups as 32 bits; raises when there are more.
inline uint32_t group_count(uint64_t groups) {
    if (groups > UINT32_MAX)
        throw std::runtime_error(std::to_string(groups) +
                                 " workgroups in one dispatch are more than the 2^32 - 1 that "
                                 "the MPS backend can number");
    return static_cast<uint32_t>(groups);
}

}  // namespace anymps::kernels
