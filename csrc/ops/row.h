// What operators are made of that are one expression: the generated headers of families that have some
// include it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>

// Marks and defines an overload that is one expression of its arguments, for tools/gen_registration.py: they
// have the names of native_functions.yaml, for a structured `out` overload those of its impl. The forms for
// sparse tensors are those of ANYMPS_SPARSE_FUNC (ops/sparse/markers.h).
#define ANYMPS_ROW(name, ...) \
    ANYMPS_SIGNATURE_##name { \
        return __VA_ARGS__;   \
    }
#define ANYMPS_SPARSE_ROW(name, ...) ANYMPS_ROW(name##_sparse, __VA_ARGS__)
#define ANYMPS_SPARSE_CSR_ROW(name, ...) ANYMPS_ROW(name##_sparse_csr, __VA_ARGS__)

namespace anymps::ops {

// What a functional variant hands to its out variant, and then returns: mm_out(a, b, NewTensor(a.options())).
class NewTensor {
  public:
    // Of no elements: the out variant resizes it.
    explicit NewTensor(const at::TensorOptions& options) : tensor_(at::empty({0}, options)) {}
    explicit NewTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}
    operator at::Tensor&() { return tensor_; }

  private:
    at::Tensor tensor_;
};

}  // namespace anymps::ops
