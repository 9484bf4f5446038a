// Factors of float32 as scaled halves, which matrix units multiply (shaders/matmul_pack.slang).
#pragma once

#include "ops/matmul/gemm.h"

namespace anymps::ops {

// A factor of `rows` x `k` in granules of halves, behind the largest magnitude of each row. `tensor` must
// outlive the use of the addresses.
struct Halves {
    static constexpr int64_t kStep = 32;  // k is padded to whole steps of the tiles

    at::Tensor tensor;
    uint64_t address;       // of the rows
    uint32_t norms_before;  // words of 16 bytes between the norms and the rows
    uint32_t pitch;         // of a row, in such words
    uint32_t rows_a_batch;  // 0 where all of the batch are the same

    // parts: 1 or 2 halves a number
    Halves(const Matrices& factor, int64_t batch, int64_t rows, int64_t k, uint32_t parts);
};

// Whether elements along k follow one another.
bool follows_k(const Matrices& factor);

// Whether a factor of float32 can be read in words of four elements.
bool reads_words(const Matrices& factor, int64_t rows, int64_t k);

// How much of k one workgroup looks at for the largest magnitude of rows that do not follow k.
uint32_t part_of_k(int64_t k);

// True where a product gains more from halves that were cut before than the cutting costs.
bool worth_halves(double batch, double m, double n, double k);

}  // namespace anymps::ops
