// Aligned copies of operands of large products.
#pragma once

#include "gemm/gemm.h"

namespace anymps::gemm {

// A factor of `rows` x `k`, or a copy of it whose rows (or columns) are whole 16-byte words, zero behind
// their last element. `tensor` holds the copy and must outlive the use of `matrices`.
struct PackedFactor {
    at::Tensor tensor;
    Matrices matrices;

    PackedFactor(const Matrices& factor, int64_t batch, int64_t rows, int64_t columns);
    PackedFactor(const PackedFactor&) = delete;
    PackedFactor& operator=(const PackedFactor&) = delete;
};

}  // namespace anymps::gemm
