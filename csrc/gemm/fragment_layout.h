// How a subgroup holds a fragment of matrix units, as measured on the device.
#pragma once

#include <c10/core/ScalarType.h>

namespace anymps::gemm {

// Whether subgroups of 32 hold fragments of this type as shaders/attention/flash.slang says; swapped: with
// rows and columns that are 8 apart in the other order.
struct FragmentLayout {
    bool known = false, acc_swapped = false, a_swapped = false;
    bool b_known = false, b_swapped = false;
};
FragmentLayout fragment_layout(at::ScalarType type);

// True where a GPU's matrix units take subgroups of 32 that hold both operands so.
bool lanes_hold_operands(at::ScalarType type);

}  // namespace anymps::gemm
