// Kernels of real numbers would read the real parts of complex ones, and of floats write integers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace anymps::ops {

// Raises NotImplementedError in the CPU's words; name: that of the CPU's kernel.
inline void check_implemented(bool implemented, const char* name, const at::TensorBase& tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(implemented, "\"", name, "\" not implemented for '",
                                c10::toString(tensor.scalar_type()), "'");
}

// Where a tensor is complex.
inline void check_real(const char* name, const at::TensorBase& tensor) {
    check_implemented(!c10::isComplexType(tensor.scalar_type()), name, tensor);
}

// Where a tensor is not of floating point.
inline void check_floating(const char* name, const at::TensorBase& tensor) {
    check_implemented(c10::isFloatingType(tensor.scalar_type()), name, tensor);
}

}  // namespace anymps::ops
