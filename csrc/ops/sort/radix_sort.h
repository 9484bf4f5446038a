#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/route_device.h"
#include "ops/sort/sort_order.h"

namespace anymps::ops {

// Rows [n, length] are dense, sorts are stable, NaN is above all numbers. Of `bits` only the lowest are
// looked at, which is the order of integers from 0 to 2^bits - 1.

// Whether radix sorts and selects such rows on this device. Raises for rows that nothing here can sort: of a
// complex dtype or of more than 2^31 elements.
bool sorts_by_radix(const at::Tensor& rows);
bool supports_radix_sort(uint64_t length, const kernels::RouteDevice& device);
// Threads, and elements that a workgroup of them sorts together.
uint32_t radix_workgroup(const kernels::RouteDevice& device = kernels::route_device());
uint32_t radix_tile(const kernels::RouteDevice& device = kernels::route_device());

// Places [first, first + kept) of sorted rows of at most radix_tile() elements: values and indices are [n,
// kept], dense. Elements have these positions, uint32 in an int32 tensor, or count from 0 where it is
// undefined. Indices are int32 or int64.
void radix_sort_tiles(const at::Tensor& rows, const at::Tensor& positions, bool descending, int64_t first,
                      const at::Tensor& values, const at::Tensor& indices, uint32_t bits = kAllBits);

// Whole rows of any length; without `indices`, only their elements.
void radix_sort_passes(const at::Tensor& rows, bool descending, const at::Tensor& values,
                       const at::Tensor& indices, uint32_t bits = kAllBits);

}  // namespace anymps::ops
