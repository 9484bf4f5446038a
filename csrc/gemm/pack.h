// Aligned copies of operands of large products.
#pragma once

#include "gemm/gemm.h"

namespace anymps::gemm {

// An operand of `rows` x `k`, or a copy of it whose rows (or columns) are whole 16-byte words, zero behind
// their last element. `tensor` holds the copy and must outlive the use of `matrices`.
struct PackedOperand {
    at::Tensor tensor;
    Matrices matrices;

    PackedOperand(const Matrices& operand, int64_t batch, int64_t rows, int64_t columns);
    PackedOperand(const PackedOperand&) = delete;
    PackedOperand& operator=(const PackedOperand&) = delete;
};

}  // namespace anymps::gemm
