// Kernels of real numbers would read the real parts of complex ones, and of floats write integers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace anymps::ops {

// Raises NotImplementedError in the CPU's words where a tensor is complex; name: that of the CPU's kernel.
inline void check_real(const char* name, const at::TensorBase& tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(tensor.scalar_type()), "\"", name,
                                "\" not implemented for '", c10::toString(tensor.scalar_type()), "'");
}

// The same where a tensor is not of floating point.
inline void check_floating(const char* name, const at::TensorBase& tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(tensor.scalar_type()), "\"", name,
                                "\" not implemented for '", c10::toString(tensor.scalar_type()), "'");
}

}  // namespace anymps::ops
