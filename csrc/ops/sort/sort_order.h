#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "kernels/route_device.h"

namespace anymps::ops {

// Places [first, first + kept) of sorted rows.
struct SortProblem {
    uint64_t rows, length;
    uint64_t first, kept;
    bool descending;
};

std::string to_text(const SortProblem& problem);
// The kernels that a device would run for sort_rows, and for sorted_order.
const char* sort_route(const SortProblem& problem, const kernels::RouteDevice& device);
const char* sorted_order_route(const SortProblem& problem, const kernels::RouteDevice& device);

// Rows [n, length] of any real dtype, dense, in sorted order; stable. NaN is above all numbers. Both raise
// for complex dtypes and for rows of more than 2^31 elements.

// Places [first, first + kept) of each sorted row: values of rows' dtype and the positions they come from,
// int64, both [n, kept], dense, of memory of their own.
void sort_rows(const at::Tensor& rows, bool descending, int64_t first, const at::Tensor& values,
               const at::Tensor& indices);

// The elements of each row in ascending order, of the same shape.
at::Tensor sorted_values(const at::Tensor& rows);

// The positions of each row's elements in sorted order: uint32 in an int32 tensor of the same shape. bits:
// where all elements are integers from 0 to 2^bits - 1; the order of others is any. sorted, where it is not
// null, becomes the elements in that order.
constexpr uint32_t kAllBits = 64;
at::Tensor sorted_order(const at::Tensor& rows, bool descending, uint32_t bits = kAllBits,
                        at::Tensor* sorted = nullptr);

}  // namespace anymps::ops
