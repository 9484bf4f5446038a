// Tensors in compressed rows or columns (CSR, CSC, BSR, BSC) on mps. PyTorch's implementation of them refuses
// devices that it does not know.
#pragma once

#include <ATen/core/Tensor.h>

namespace anymps::ops {

// A tensor of `layout` and values' dtype with these members, unchecked: compressed_indices [batch..., n + 1]
// and plain_indices [batch..., nnz] of one integer dtype, values [batch..., nnz, block..., dense...].
at::Tensor compressed_tensor(at::Layout layout, const at::Tensor& compressed_indices,
                             const at::Tensor& plain_indices, const at::Tensor& values,
                             c10::SymIntArrayRef size);

// A compressed tensor with the sizes and the layout of another one, a copy of its indices (copy_ writes them
// in place) and these values.
at::Tensor with_values(const at::Tensor& like, const at::Tensor& values);

}  // namespace anymps::ops
