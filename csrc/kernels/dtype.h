// Storage types of tensors.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/storage_type.h"

namespace anymps::kernels {

// The code of a torch dtype. Throws c10::TypeError-like TORCH_CHECK for dtypes that the device cannot hold.
DType dtype_of(c10::ScalarType type);

inline uint32_t code(c10::ScalarType type) {
    return static_cast<uint32_t>(dtype_of(type));
}

// The integer dtype of 1, 2, 4 or 8 bytes: elements of any dtype of that size can be moved as such.
c10::ScalarType integer_of_size(size_t bytes);

// How many floating elements a lane loads as a vector of 16 bytes; 0 for other dtypes.
uint32_t floats_per_vector(c10::ScalarType type);

// The arithmetic type that the kernels compute in for a storage type.
inline Compute compute_of(c10::ScalarType type) {
    return compute_of(dtype_of(type));
}

// The dtype of a code.
c10::ScalarType scalar_type_of(DType type);

}  // namespace anymps::kernels
