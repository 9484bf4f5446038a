// Results that are channels-last where an input is, as on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace anymps::ops {

// Gives a contiguous result, whose elements are not written yet, the memory format that `like` suggests.
// Other strides are the user's, of an out=.
inline void take_memory_format(const at::Tensor& result, const at::Tensor& like) {
    const auto format = like.suggest_memory_format();
    const bool fits = format == at::MemoryFormat::Contiguous || result.dim() == like.dim();
    if (fits && result.is_contiguous()) result.unsafeGetTensorImpl()->empty_tensor_restride(format);
}

}  // namespace anymps::ops
