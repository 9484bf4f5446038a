// Workgroups for kernels whose threads share nothing.
#pragma once

#include "kernels/launch_config.h"
#include "runtime/command_encoder.h"

namespace anymps::kernels {

// Threads of a workgroup: the subgroup of a software driver, which runs it as one vector; 256 on a GPU.
inline uint32_t flat_workgroup() {
    return launch_config().software ? launch_config().workgroup : 256;
}

// The workgroups that hold `threads` threads; kernels check the bound, as the last one may be part empty.
inline runtime::Grid flat_grid(uint64_t threads, uint32_t workgroup = flat_workgroup()) {
    return runtime::Grid::linear(ceil_div(threads, workgroup));
}

}  // namespace anymps::kernels
