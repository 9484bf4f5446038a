// Storage type codes shared by the host and shaders/lib/dtype.slang, where they are specialization constants.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace anymps::kernels {

enum class DType : uint32_t {
    Bool = 0,
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    C64,
    U16,
    U32,
    U64,
    C32,
};

// The code of a torch dtype. Throws c10::TypeError-like TORCH_CHECK for dtypes that the device cannot hold.
DType dtype_of(c10::ScalarType type);

inline uint32_t code(c10::ScalarType type) {
    return static_cast<uint32_t>(dtype_of(type));
}

// The integer dtype of 1, 2, 4 or 8 bytes: elements of any dtype of that size can be moved as such.
c10::ScalarType integer_of_size(size_t bytes);

// How many floating elements a lane loads as a word of 16 bytes; 0 for other dtypes.
uint32_t floats_of_word(c10::ScalarType type);

// The arithmetic type that the kernels compute in for a storage type.
enum class Compute : uint32_t { F32 = 0, I32, I64, C64 };
Compute compute_of(c10::ScalarType type);

// "f32", "i32", "i64", "c64": the suffix of kernel names.
const char* suffix(Compute compute);

}  // namespace anymps::kernels
