#include "kernels/dtype.h"

#include <c10/util/Exception.h>

namespace anymps::kernels {

DType dtype_of(c10::ScalarType type) {
    switch (type) {
        case c10::ScalarType::Bool:
            return DType::Bool;
        case c10::ScalarType::Byte:
            return DType::U8;
        case c10::ScalarType::Char:
            return DType::I8;
        case c10::ScalarType::Short:
            return DType::I16;
        case c10::ScalarType::Int:
            return DType::I32;
        case c10::ScalarType::Long:
            return DType::I64;
        case c10::ScalarType::Half:
            return DType::F16;
        case c10::ScalarType::BFloat16:
            return DType::BF16;
        case c10::ScalarType::Float:
            return DType::F32;
        case c10::ScalarType::ComplexFloat:
            return DType::C64;
        case c10::ScalarType::UInt16:
            return DType::U16;
        case c10::ScalarType::UInt32:
            return DType::U32;
        case c10::ScalarType::UInt64:
            return DType::U64;
        case c10::ScalarType::ComplexHalf:
            return DType::C32;
        case c10::ScalarType::Float8_e4m3fn:
        case c10::ScalarType::Float8_e5m2:
        case c10::ScalarType::Float8_e4m3fnuz:
        case c10::ScalarType::Float8_e5m2fnuz:
        case c10::ScalarType::Float8_e8m0fnu:
            TORCH_CHECK_NOT_IMPLEMENTED(false, "this operator is not implemented for '", c10::toString(type),
                                        "'");
        default:
            TORCH_CHECK_TYPE(false, "Trying to convert ", c10::toString(type),
                             " to the MPS backend but it does not have support for that dtype.");
    }
}

c10::ScalarType integer_of_size(size_t bytes) {
    switch (bytes) {
        case 1:
            return c10::ScalarType::Char;
        case 2:
            return c10::ScalarType::Short;
        case 4:
            return c10::ScalarType::Int;
        default:
            TORCH_INTERNAL_ASSERT(bytes == 8, "no integer of ", bytes, " bytes");
            return c10::ScalarType::Long;
    }
}

uint32_t floats_per_vector(c10::ScalarType type) {
    return type == c10::ScalarType::Float ? 4 : c10::isReducedFloatingType(type) ? 8 : 0;
}

c10::ScalarType scalar_type_of(DType type) {
    using enum c10::ScalarType;
    constexpr c10::ScalarType kTypes[] = {Bool,     Byte,  Char,         Short,  Int,    Long,   Half,
                                          BFloat16, Float, ComplexFloat, UInt16, UInt32, UInt64, ComplexHalf};
    return kTypes[code(type)];
}

}  // namespace anymps::kernels
