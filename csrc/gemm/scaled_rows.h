// Row-scaled f16 copies of f32 operands for matrix units (shaders/gemm/matmul_pack.slang).
#pragma once

#include "gemm/gemm.h"

namespace anymps::gemm {

// Operand of `rows` x `k` as vec8 of f16, after the amax of each row. `tensor` must outlive the use of the
// addresses.
struct ScaledRows {
    at::Tensor tensor;
    uint64_t address;            // first row
    uint32_t words_before_rows;  // 16-byte vectors between the amax of the rows and the rows
    uint32_t pitch;              // row stride, in 16-byte vectors
    uint32_t rows_per_batch;     // 0: one matrix for the whole batch

    // terms: of f16 a number, 1 or 2
    ScaledRows(const Matrices& operand, int64_t batch, int64_t rows, int64_t k, uint32_t terms);
};

// True where the operand is contiguous along k.
bool follows_k(const Matrices& operand);

// True where an f32 operand loads as vec4.
bool is_vectorizable(const Matrices& operand, int64_t rows, int64_t k);

}  // namespace anymps::gemm
