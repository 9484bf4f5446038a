// How a subgroup holds a fragment of matrix units, as measured on the device.
#pragma once

#include <c10/core/ScalarType.h>

#include "gemm/block_layout.h"

namespace anymps::gemm {

// As measured, once a process.
FragmentLayout fragment_layout(at::ScalarType type);

// True where a GPU's matrix units take subgroups of 32 that hold both operands so.
bool lanes_hold_operands(at::ScalarType type);

}  // namespace anymps::gemm
