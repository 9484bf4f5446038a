// Floats of 8 bits: tensors of them are held, moved and viewed, and converted by rows of pointwise.yaml; no
// other kernel computes in them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace anymps::kernels {

// The format's number in shaders/lib/float8.slang; -1 for another dtype.
constexpr int32_t float8_format(c10::ScalarType type) {
    switch (type) {
        case c10::ScalarType::Float8_e4m3fn:
            return 0;
        case c10::ScalarType::Float8_e5m2:
            return 1;
        case c10::ScalarType::Float8_e4m3fnuz:
            return 2;
        case c10::ScalarType::Float8_e5m2fnuz:
            return 3;
        case c10::ScalarType::Float8_e8m0fnu:
            return 4;
        default:
            return -1;
    }
}

constexpr bool is_float8(c10::ScalarType type) {
    return float8_format(type) >= 0;
}

}  // namespace anymps::kernels
