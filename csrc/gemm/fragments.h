// Fragment-packed copies of 16-bit operands (shaders/gemm/matmul_fragments.slang).
#pragma once

#include "gemm/block_layout.h"
#include "gemm/gemm.h"
#include "gemm/tiles.h"

namespace anymps::gemm {

// Operands `a` [m, k] and `b` [n, k] as fragments. `tensor` must outlive the use of the addresses.
struct Fragments {
    struct Operand {
        uint64_t address;
        uint32_t panels_per_batch;  // 0: one matrix for the whole batch
    };

    at::Tensor tensor;
    Operand a, b;
    uint32_t steps;  // of 16 k

    // a_layout, b_layout: of vec8 loads. plan: of the product.
    Fragments(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n, int64_t k,
              BlockLayout a_layout, BlockLayout b_layout, const Plan& plan);
};

// True where the device's fragment layout is one that can be packed in memory.
bool holds_fragments(at::ScalarType type);

// True where the device's fragment layout can be packed, and the product is neither too small to gain nor too
// large to copy.
bool can_use_fragments(at::ScalarType type, double batch, double m, double n, double k);

// True where the accumulator's layout has rows and columns that are 8 apart swapped; for devices that can use
// fragments.
bool holds_acc_swapped(at::ScalarType type);

}  // namespace anymps::gemm
