// Factors of 16 bits in the order in which matrix units take them (shaders/matmul_fragments.slang).
#pragma once

#include "ops/matmul/gemm.h"
#include "ops/matmul/tiles.h"

namespace anymps::ops {

// The factors of a product, `a` of m rows and `b` of n, of k each, as fragments. `tensor` must outlive the
// use of the addresses.
struct Fragments {
    struct Factor {
        uint64_t address;
        uint32_t steps;           // of 16 k
        uint32_t panels_a_batch;  // 0 where all of the batch are the same
    };

    at::Tensor tensor;
    Factor a, b;

    // layouts: how granules of eight elements are read (BlockLayout). plan: of the product.
    Fragments(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n, int64_t k,
              uint32_t a_layout, uint32_t b_layout, const Plan& plan);
};

// Whether the device holds fragments so that they can be stored in this order.
bool holds_fragments(at::ScalarType type);

// Whether the device holds fragments so that they can be stored in this order, and the product is neither too
// small to gain nor too large for copies.
bool can_use_fragments(at::ScalarType type, double batch, double m, double n, double k);

// Whether the driver has rows and columns of results that are 8 apart in the other order; for devices that
// can use fragments.
bool holds_sums_swapped(at::ScalarType type);

}  // namespace anymps::ops
