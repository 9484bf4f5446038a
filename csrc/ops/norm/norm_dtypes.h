// Which dtypes the parameters and running statistics of a norm may have.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace anymps::ops {

// Raises the CPU's words unless each tensor that is defined has the dtype of the input, or float32 beside one
// of 16 bits.
inline void check_norm_dtypes(const at::Tensor& input, std::initializer_list<at::Tensor> parameters) {
    for (const at::Tensor& parameter : parameters) {
        TORCH_CHECK(!parameter.defined() || parameter.scalar_type() == input.scalar_type() ||
                        parameter.scalar_type() == at::kFloat,
                    "mixed dtype (CPU): expect parameter to have scalar type of Float");
    }
}

}  // namespace anymps::ops
