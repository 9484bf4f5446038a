// Strided batched matrix products on the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>

#include "gemm/epilogue.h"

namespace anymps::gemm {

// A tensor as a batch of matrices: element strides of batch, row and column. The tensor names the storage and
// the first element; nullptr: there is none.
struct Matrices {
    const at::Tensor* tensor;
    int64_t batch, row, column;
    bool padded =
        false;  // rows (columns where row is 1) are followed by zeros up to a multiple of 8 elements

    Matrices transposed() const { return {tensor, batch, column, row, padded}; }
};

// A stride as kernels take it: 0 where there is no second element.
inline uint32_t kernel_stride(int64_t stride, int64_t size) {
    return size <= 1 ? 0 : static_cast<uint32_t>(stride);
}

// Of a 3-d tensor, or of a 2-d one (a batch of one).
Matrices matrices(const at::Tensor& tensor);
constexpr Matrices kNoMatrices{nullptr, 0, 0, 0};

// out[z] = alpha * a[z] @ b[z] + beta * self[z]. Integers are of one dtype and wrap; floating dtypes may be
// mixed and compute in f32 (self has out's dtype). Complex tensors must not be conjugate views.
struct Gemm {
    const char* name;  // of the op, for messages
    int64_t batch, m, n, k;
    Matrices a;     // m x k
    Matrices b;     // k x n
    Matrices out;   // m x n; must not overlap a or b
    Matrices self;  // m x n, any strides (0 too); may be out itself
    at::Scalar beta = 1, alpha = 1;
    bool sum_batch = false;  // add the products of the batch to one m x n
    GemmEpilogue epilogue{};

    // Into the product of the transposed operands in the other order, whose result is the transposed one.
    void transpose();

    // With k == 0 the product is 0; beta == 0 ignores self, NaN or not.
    // Raises NotImplementedError for bool and unsigned integers above 8 bits.
    void run();
};

}  // namespace anymps::gemm
