// Rows combined by index, in a fixed order and without atomics.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {

// out[index[i]] = the sum, product, least or greatest (how.operation) of rows[i] over all i, in float, and
// without how.replaces of what out has there, too; rows of out that no index names stay. out [n, width] is
// dense along its width, rows [count, width] and index [count], int64 or int32, have any strides. how.skip
// and how.wrap as in indexed_copy.h. n < 2^31 - 1, count < 2^31. An index out of range makes the next
// synchronization raise torch.AcceleratorError, naming how.op.
void reduce_by_index(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& index,
                     const IndexedCopy& how);

// The sums, which replace what out has.
void segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows, const at::Tensor& index,
                 int64_t skip);

// The same for indices in ascending order, index[i] being that of rows[order[i]]: order [count] is uint32 in
// an int32 tensor.
void sorted_segment_sum(const char* op, const at::Tensor& out, const at::Tensor& rows,
                        const at::Tensor& index, const at::Tensor& order);

}  // namespace anymps::ops
