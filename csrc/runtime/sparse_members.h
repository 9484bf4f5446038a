#pragma once

#include <ATen/core/Tensor.h>

namespace anymps::runtime {

// A sparse tensor becomes another one of its kind, in coordinates or compressed, whatever it was before: its
// members, sizes and layout, and whether it is coalesced. It keeps its dtype.
void take_members(const at::Tensor& tensor, const at::Tensor& other);

}  // namespace anymps::runtime
