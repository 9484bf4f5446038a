// Blocked factorizations and solves of batches of matrices, in place. Everything here takes 3-d tensors
// [batch, rows, columns] of float32 or complex64 with any strides.
#pragma once

#include <ATen/core/Tensor.h>
#include <anymps/shaders/linalg/field.h>

#include <array>
#include <cstdint>

namespace anymps::ops {

constexpr int64_t kBlock = shaders::field::kBlock;

// Strides of batch, row and column in bytes, as kernels take them.
inline std::array<int64_t, 3> strides_of(const at::Tensor& matrices) {
    const auto item = static_cast<int64_t>(matrices.element_size());
    return {matrices.stride(0) * item, matrices.stride(1) * item, matrices.stride(2) * item};
}

// Raises NotImplementedError in the words of ATen's dispatch macros for other dtypes than float32 and
// complex64; op: their name for it.
void check_field(const char* op, const at::Tensor& matrices);

// A tensor [..., rows, columns] as one batch; a view where its batch dimensions allow it and it is no
// conjugate.
at::Tensor as_batch(const at::Tensor& matrices);

// The part of every matrix that begins at (row, column).
at::Tensor block(const at::Tensor& matrices, int64_t row, int64_t rows, int64_t column, int64_t columns);

// out -= a @ b; neither factor overlaps out.
void subtract_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// b becomes the X of a @ X = b. a: [batch, n, n], its lower or upper triangle; unit: ones on the diagonal.
void solve_triangular(const at::Tensor& a, const at::Tensor& b, bool upper, bool unit);

// The lower triangle of a becomes the L of a = L L^H, the rest is undefined. info: int32 [batch], 0 or the
// first minor that is not positive definite.
void factor_cholesky(const at::Tensor& a, const at::Tensor& info);

// a becomes its L (below the diagonal) and U. pivots: int32 [batch, min(rows, columns)], contiguous, from 1;
// info: int32 [batch], 0 or the first column without a pivot. Without pivoting the pivots say "none".
void factor_lu(const at::Tensor& a, const at::Tensor& pivots, const at::Tensor& info, bool pivoting);

// Row exchanges `pivots` of b: [batch, n, columns], or their inverse.
void swap_rows(const at::Tensor& b, const at::Tensor& pivots, bool backwards);

}  // namespace anymps::ops
