// What operators on tensors in coordinates (COO) are made of. indices [sparse_dim, nnz] int64, values [nnz,
// dense sizes...].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace anymps::ops {

// The key of each element, [nnz] int64: its place among all places of the sparse sizes, in row-major order.
// indices [n, nnz] and the first n sizes.
at::Tensor flat_keys(const at::Tensor& indices, at::IntArrayRef sizes);

// The positions of keys [nnz] in ascending order, stable, as uint32 in int32. sizes: those that the keys are
// places among. sorted, where it is not null, becomes the keys in that order.
at::Tensor order_of_keys(const at::Tensor& keys, at::IntArrayRef sizes, at::Tensor* sorted = nullptr);

// A tensor of these indices and values, unchecked. like: gives dtype and device.
at::Tensor sparse_tensor(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes,
                         bool coalesced);

// out, in coordinates or compressed, becomes value of its kind, whatever it was before; out keeps its dtype.
// Raises where they are not of one kind.
at::Tensor& become(at::Tensor& out, const at::Tensor& value);

// Gives a dense result of op its size; raises where it is not dense.
at::Tensor& resize_dense(const char* op, at::Tensor& out, at::IntArrayRef sizes);

// Where a run of each number from 0 to size - 1 begins in ascending numbers: [size + 1] of `type`.
at::Tensor row_pointers(const at::Tensor& sorted, int64_t size, at::ScalarType type = at::kLong);

// The row of each element of matrices in compressed rows: pointers [batch..., rows + 1] of nnz elements each
// give [batches, nnz] of their dtype.
at::Tensor rows_of_elements(const at::Tensor& pointers, int64_t nnz);

// Where each key is in ascending, distinct ones: {bool, whether it is there; int64, its position, valid where
// it is}. `among` has at least one element.
std::pair<at::Tensor, at::Tensor> find_keys(const at::Tensor& among, const at::Tensor& keys);

// The value, of values [among, ...], of each key; 0 where the key is not there.
at::Tensor values_of_keys(const at::Tensor& values, const at::Tensor& among, const at::Tensor& keys);

// Numbers [n] as [n, 1, ...] of that many dimensions, which broadcast along values.
at::Tensor per_element(const at::Tensor& numbers, int64_t dims);

// For every row named (rows [n] int64) all positions from pointers[row] to pointers[row + 1] - 1: {which of
// the n, the position}, of one length. Waits for the device.
std::pair<at::Tensor, at::Tensor> positions_of_rows(const at::Tensor& pointers, const at::Tensor& rows);

// values [count, ...] added up by index [count] int64 into zeros [size, ...]; floats are added in float, in a
// fixed order.
at::Tensor add_by_index(const at::Tensor& values, const at::Tensor& index, int64_t size);

// The same for values in a sorted order, where run [count] int64, from 0 to size - 1 without gaps, is the
// index of the values at order [count].
at::Tensor add_by_run(const at::Tensor& values, const at::Tensor& order, const at::Tensor& run, int64_t size);

}  // namespace anymps::ops
