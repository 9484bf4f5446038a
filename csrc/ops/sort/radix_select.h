#pragma once

#include <ATen/core/Tensor.h>

namespace anymps::ops {

// Selection from rows [n, length], dense, that sorts_by_radix() of radix_sort.h holds for. Selecting is
// quicker than sorting where a row is longer than radix_tile().

// For every row the element of a rank, its number in ascending order, and its first position: ranks, values
// and indices are [n], the first and the last int64.
void select_positions(const at::Tensor& rows, const at::Tensor& ranks, const at::Tensor& values,
                      const at::Tensor& indices);

// The first elements of each sorted row, at most radix_tile(): values and indices (int64) are [n, kept].
void select_first(const at::Tensor& rows, bool descending, const at::Tensor& values,
                  const at::Tensor& indices);

}  // namespace anymps::ops
