// Rows added up by index, in a fixed order and without atomics.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace anymps::ops {

// out[index[i]] = the sum of rows[i] over all i, in float; rows of out that no index names stay. out [n,
// width] and rows [count, width] are dense along their width, index [count] is int64 or int32; elements with
// index `skip` are left out. An index out of range makes the next synchronization raise
// torch.AcceleratorError, naming op.
void segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows, const at::Tensor& index,
                 int64_t skip);

// The same for indices in ascending order, index[i] being that of rows[order[i]]: order [count] is uint32 in
// an int32 tensor.
void sorted_segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows,
                        const at::Tensor& index, const at::Tensor& order);

}  // namespace anymps::ops
