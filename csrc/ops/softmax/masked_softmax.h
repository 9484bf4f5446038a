// Masks of attention as PyTorch's private operators take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace anymps::ops {

// A mask of bool, true where a score is left out, as a view that broadcasts to scores of these sizes. Type 0:
// [L, L], of queries and keys; 1: [batch, L], of keys; 2, and whatever is no 2-d mask of 4-d scores: the
// sizes of the scores. Raises where the sizes do not fit, or where a 2-d mask of 4-d scores has no type.
at::Tensor broadcast_mask(const at::Tensor& mask, at::IntArrayRef scores, std::optional<int64_t> type);

}  // namespace anymps::ops
