// Aligned copies of operands of large products.
#pragma once

#include "ops/matmul/gemm.h"

namespace anymps::ops {

// A factor of `rows` x `k`, or a copy of it whose rows (or columns) are whole 16-byte words, zero behind
// their last element. `tensor` holds the copy and must outlive the use of `matrices`.
struct PackedFactor {
    at::Tensor tensor;
    Matrices matrices;

    PackedFactor(const Matrices& factor, int64_t batch, int64_t rows, int64_t columns);
    PackedFactor(const PackedFactor&) = delete;
    PackedFactor& operator=(const PackedFactor&) = delete;
};

// True where a product on matrix units gains more from aligned loads than the copy costs: it loads each
// element of the factor once for every tile of the other factor's `others` rows.
bool worth_packing(int64_t others, double products);

}  // namespace anymps::ops
