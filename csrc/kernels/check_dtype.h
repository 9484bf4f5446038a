// What is said of dtypes that an operator has no kernel for: the CPU's words.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace anymps::kernels {

// Raises NotImplementedError: "name" not implemented for 'Long'. name: that of the CPU's kernel, in parts.
template <class... Name>
[[noreturn]] void raise_not_implemented(c10::ScalarType type, const Name&... name) {
    C10_THROW_ERROR(NotImplementedError,
                    c10::str('"', name..., "\" not implemented for '", c10::toString(type), "'"));
}

template <class... Name>
void check_implemented(bool implemented, c10::ScalarType type, const Name&... name) {
    if (!implemented) [[unlikely]]
        raise_not_implemented(type, name...);
}

// Kernels of real numbers would read the real parts of complex ones.
template <class... Name>
void check_real(c10::ScalarType type, const Name&... name) {
    check_implemented(!c10::isComplexType(type), type, name...);
}

// Kernels of floats would write integers.
template <class... Name>
void check_floating(c10::ScalarType type, const Name&... name) {
    check_implemented(c10::isFloatingType(type), type, name...);
}

}  // namespace anymps::kernels
