// Blocked factorizations and solves of batches of matrices, in place. Everything here takes 3-d tensors
// [batch, rows, columns] of float32 or complex64 with any strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace anymps::ops {

constexpr int64_t kBlock = 32;  // as in shaders/lib/field.slang

// Element strides of batch, row and column in bytes, as kernels take them.
struct MatrixStrides {
    int64_t batch, row, column;
    explicit MatrixStrides(const at::Tensor& matrices)
        : batch(matrices.stride(0) * item(matrices)),
          row(matrices.stride(1) * item(matrices)),
          column(matrices.stride(2) * item(matrices)) {}

  private:
    static int64_t item(const at::Tensor& t) { return static_cast<int64_t>(t.element_size()); }
};

// "lu_panel" of float32 is the kernel "lu_panel_f32", of complex64 "lu_panel_c64". Raises
// NotImplementedError in the words of ATen's dispatch macros for other dtypes; op: their name for it.
std::string kernel_of(const char* kernel, const at::Tensor& matrices);
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
