// Storage types without PyTorch: codes shared by the host and shaders/lib/dtype.slang, where they are
// specialization constants.
#pragma once

#include <cstdint>

namespace anymps::kernels {

enum class DType : uint8_t {
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

constexpr uint32_t code(DType type) {
    return static_cast<uint32_t>(type);
}

// Bytes.
constexpr int64_t element_size(DType type) {
    constexpr int64_t kSizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 2, 4, 8, 4};
    return kSizes[code(type)];
}

// PyTorch's name.
constexpr const char* name_of(DType type) {
    constexpr const char* kNames[] = {"Bool",   "Byte",   "Char",     "Short",      "Int",
                                      "Long",   "Half",   "BFloat16", "Float",      "ComplexFloat",
                                      "UInt16", "UInt32", "UInt64",   "ComplexHalf"};
    return kNames[code(type)];
}

// The arithmetic type that the kernels compute in for a storage type.
enum class Compute : uint32_t { F32 = 0, I32, I64, C64 };

constexpr Compute compute_of(DType type) {
    switch (type) {
        case DType::F16:
        case DType::BF16:
        case DType::F32:
            return Compute::F32;
        case DType::C64:
        case DType::C32:
            return Compute::C64;
        case DType::I64:
        case DType::U32:
        case DType::U64:
            return Compute::I64;
        default:
            return Compute::I32;
    }
}

// "f32", "i32", "i64", "c64": the suffix of kernel names.
constexpr const char* suffix(Compute compute) {
    constexpr const char* kNames[] = {"f32", "i32", "i64", "c64"};
    return kNames[static_cast<uint32_t>(compute)];
}

}  // namespace anymps::kernels
