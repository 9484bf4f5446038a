// What ATen's typed kernels check of the tensors that callers give to operators. A kernel here would read and
// write their memory as another type.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace anymps::ops {

// Raises PyTorch's RuntimeError unless a tensor has that dtype.
inline void check_dtype(c10::ScalarType expected, const at::TensorBase& tensor) {
    TORCH_CHECK(tensor.scalar_type() == expected, "expected scalar type ", expected, " but found ",
                tensor.scalar_type());
}

// The same for a tensor that has to have another one's dtype.
inline void check_same_dtype_as(const at::TensorBase& expected, const at::TensorBase& tensor) {
    check_dtype(expected.scalar_type(), tensor);
}

}  // namespace anymps::ops
