// Row-scaled f16 copies of f32 operands, as fragments of matrix units
// (shaders/gemm/matmul_scaled_pack.slang).
#pragma once

#include "gemm/gemm.h"

namespace anymps::gemm {

// Operands `a` [m, k] and `b` [n, k], after the amax of their rows. `tensor` must outlive the use of the
// addresses.
struct ScaledFragments {
    struct Operand {
        uint64_t address;
        uint32_t panels_per_batch;  // panels of 64 rows; 0: one matrix for the whole batch
    };

    at::Tensor tensor;
    Operand a, b;
    uint32_t steps;  // steps of 16 k and one term

    // terms: of f16 a number, 1 or 2. fallback_flags: set to 0.
    ScaledFragments(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n, int64_t k,
                    uint32_t terms, const at::Tensor& fallback_flags);
};

}  // namespace anymps::gemm
