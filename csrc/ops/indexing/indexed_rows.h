// Indexed copies whose elements come in dense rows of one index each, as embedding, index_select and
// index_add of features have them: one index is read for a row, and vectors are moved.
#pragma once

#include <ATen/TensorIterator.h>

#include <cstdint>
#include <span>

#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {

// Bytes of the widest words, 16 at most, in which an indexed copy can assign: several elements where the
// innermost dimension is dense and stands still in the indices. index_strides: bytes, as for indexed_copy.
uint32_t word_bytes(const at::TensorIteratorBase& iter, std::span<const int64_t> index_strides);

// Arguments of both: see indexed_copy. They do all of it, or nothing and return false.

// Combines rows of floats by their sorted indices (segment_sum.h): each is read once and each result written
// once, in float, in a fixed order. Where that moves fewer bytes than atomics do. With how.replaces what is
// combined replaces what dst has.
bool reduce_rows(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
                 std::span<const int64_t> strides);

// Whether so many elements may be worth reduce_rows, whatever their strides.
bool may_reduce_rows(at::ScalarType type, int64_t elements, IndexedOperation operation);

// Assigns rows as words of up to 16 bytes, or adds rows of floats atomically.
bool move_rows(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
               std::span<const int64_t> strides);

}  // namespace anymps::ops
