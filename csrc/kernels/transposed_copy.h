// Copies between two layouts whose contiguous dimensions differ, by tiles in shared memory.
#pragma once

#include <ATen/native/TensorIterator.h>

namespace anymps::kernels {

// Copies operand 1 to operand 0 (one dtype, device mps) where that is worth a tile: the operands are
// contiguous along two different dimensions, both long. Otherwise does nothing and returns false. Each
// operand spans less than 2^31 bytes.
bool transposed_copy(at::TensorIteratorBase& iter);

}  // namespace anymps::kernels
