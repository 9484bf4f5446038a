// Factors of float32 as scaled halves in fragments of matrix units (shaders/matmul_halves_cut.slang).
#pragma once

#include "ops/matmul/gemm.h"

namespace anymps::ops {

// The factors of a product, `a` of m rows and `b` of n, of k each, behind the largest magnitudes of their
// rows. `tensor` must outlive the use of the addresses.
struct HalfFragments {
    struct Factor {
        uint64_t address;
        uint32_t panels_a_batch;  // of 64 rows; 0 where all of the batch are the same
    };

    at::Tensor tensor;
    Factor a, b;
    uint32_t steps;  // of 16 k and one part

    // parts: 1 or 2 halves a number. marks: become 0.
    HalfFragments(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n, int64_t k,
                  uint32_t parts, const at::Tensor& marks);
};

}  // namespace anymps::ops
