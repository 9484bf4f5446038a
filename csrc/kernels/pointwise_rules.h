// Iterators of pointwise operators that PyTorch does not build for us, beside at::TensorIterator's own.
#pragma once

#include <ATen/TensorIterator.h>

namespace anymps::kernels {

// A bool result (or any dtype of a given out) of one operand that is read in its own dtype.
at::TensorIterator unary_to_bool_op(const at::TensorBase& out, const at::TensorBase& a);

// For magnitudes and angles: the result of a complex operand is real; other operands are as in unary_op, or
// are computed in floating point.
at::TensorIterator unary_to_real_op(at::TensorBase& out, const at::TensorBase& a);
at::TensorIterator unary_float_to_real_op(at::TensorBase& out, const at::TensorBase& a);

// One result of two operands, all of one dtype.
at::TensorIterator binary_same_op(const at::TensorBase& out, const at::TensorBase& a,
                                  const at::TensorBase& b);

// One result of three operands that are promoted to a common dtype.
at::TensorIterator ternary_op(const at::TensorBase& out, const at::TensorBase& a, const at::TensorBase& b,
                              const at::TensorBase& c);

}  // namespace anymps::kernels
