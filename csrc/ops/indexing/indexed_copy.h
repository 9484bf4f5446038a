// Elements moved between tensors where one side is addressed by index tensors; the base of index, gather,
// scatter...
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <limits>
#include <span>

namespace anymps::ops {

// How a moved element meets the one in memory; codes of shaders/lib/atomic.slang.
enum class IndexedOperation : uint32_t { Assign = 0, Add, Multiply, Minimum, Maximum };

struct IndexedCopy {
    const char* op;  // named when an index is out of range
    bool indexed_destination = false;
    IndexedOperation operation = IndexedOperation::Assign;
    bool wrap = false;                                   // negative indices count from the end
    int64_t skip = std::numeric_limits<int64_t>::min();  // elements with this index are left out
    bool any_order = false;                              // no two elements are for one place
    bool replaces = false;  // what is combined replaces what dst has: for reduce_rows and reduce_rows_dim
};

// Under torch.use_deterministic_algorithms(True) one thread adds up to so many elements of a line, with the
// CPU's bits; more would take it too long.
constexpr int64_t kLongestSum = 1 << 16;

// Whether the order in which elements meet in one place changes what is there in the end.
bool order_matters(IndexedOperation operation, at::ScalarType type);

// Whether `count` elements are added up in a float copy of dst. Halves that are added where they lie are
// rounded after each addition, and come in any order: a sum of 1,200 bfloat16 was 16 % off. The copy costs
// little where most of dst's elements are added to.
bool adds_in_float(const at::Tensor& dst, int64_t count, IndexedOperation operation);

// A number as a 0-d tensor of self's dtype. Raises as the CPU does where that dtype does not hold it: the
// fill of one half would make it infinite.
at::Tensor number_for(const at::Tensor& self, const at::Scalar& value);

// iter: output dst, then inputs src and one or more index tensors (int64 or int32), all on mps, src and dst
// of one dtype. The side that is indexed moves by sum(index_k * strides[k]) bytes; 0 <= index_k < sizes[k],
// else the next synchronization raises torch.AcceleratorError. Several elements for one place: Assign keeps
// any of them, the others combine atomically, in any order.
void indexed_copy(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides);

// dst.select(dim, index[i]) op= src.select(dim, i) for gather and scatter: dst or src (the indexed one) has
// its own extent in `dim`, the other two have index's sizes. Elements for one place are taken in order where
// that is needed: 8-byte integers that are not added, and under torch.use_deterministic_algorithms(True)
// where order_matters. What adds_in_float says so for is added in float.
void indexed_copy_dim(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index, int64_t dim,
                      const IndexedCopy& how);

// Does the same by reduce_rows (indexed_rows.h), or nothing and returns false.
bool reduce_rows_dim(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index, int64_t dim,
                     const IndexedCopy& how);

}  // namespace anymps::ops
