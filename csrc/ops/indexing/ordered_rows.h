// Rows put or added where an index says, with the same bits every time.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {

// dst[index[i]] op= src[i]; dst [rows, width], src [count, width] of dst's dtype, index int64 or int32
// [count], op Assign, or Add where order_matters(). Of several rows for one place Assign keeps the last,
// and Add has the sum in float32, in the order of src, added to dst once. Indices are sorted, so that one
// that comes often costs no more than others. What is out of range raises as in indexed_copy.
void ordered_rows(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index,
                  const IndexedCopy& how);

}  // namespace anymps::ops
