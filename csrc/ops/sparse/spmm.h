// Sparse matrix times dense matrix (SpMM) and its like, the cores of products of both sparse formats.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace anymps::ops {

// The product [rows, n] of a matrix [rows, k] in compressed rows and dense [k, n], of values' dtype: pointers
// [rows + 1] and columns [nnz] of one integer dtype, values [nnz]. Values and dense are of one dtype, which
// the elements are added up in (half types in float). A column or a pointer out of range makes the next
// synchronization raise torch.AcceleratorError, naming op (a string literal).
at::Tensor spmm(const char* op, const at::Tensor& pointers, const at::Tensor& columns,
                const at::Tensor& values, const at::Tensor& dense);

// The terms of each element are reduced otherwise: floats only; 0 for a row without elements. arg, undefined
// or of the product's shape and the indices' dtype: the position in values of the term that is the extreme,
// or nnz.
enum class Reduce : uint32_t { kSum, kMean, kAmax, kAmin };
at::Tensor spmm_reduce(const char* op, Reduce reduce, const at::Tensor& pointers, const at::Tensor& columns,
                       const at::Tensor& values, const at::Tensor& dense, const at::Tensor& arg);

// The elements of left [batch..., m, k] @ right [batch..., k, n], dense and of one floating or complex dtype,
// where matrices in compressed rows have their own: [batch..., nnz] of that dtype (SDDMM). pointers
// [batch..., m + 1], columns [batch..., nnz] and op are as above.
at::Tensor sddmm(const char* op, const at::Tensor& pointers, const at::Tensor& columns,
                 const at::Tensor& left, const at::Tensor& right);

// Raises for factors of two dtypes, in ATen's words.
void check_same_type(const at::Tensor& a, const at::Tensor& b);

// out = beta * self + alpha * product, of one dtype and shape; self is not read where beta is 0, as in BLAS.
at::Tensor& scale_and_add(const at::Tensor& self, const at::Tensor& product, const at::Scalar& beta,
                          const at::Scalar& alpha, at::Tensor& out);

}  // namespace anymps::ops
