// How kernels of GEMMs may load an operand of so many rows of k: from its strides and its address.
#pragma once

#include "gemm/block_layout.h"
#include "gemm/gemm.h"

namespace anymps::gemm {

// A stride as 32 bits, 0 where there is no second element. Raises for one that is larger.
uint32_t stride32(int64_t stride, int64_t size);

// True where elements load and store as aligned vec4: `size` of them are contiguous, at these strides.
bool aligned4(uint64_t address, uint64_t item, uint32_t size, uint32_t other_stride, uint32_t batch_stride);

// For SIMT tiles: vec4.
BlockLayout vec4_layout(const Matrices& operand, int64_t rows, int64_t k, int64_t batch);

// For tiles of matrix units: vec8, aligned to 16 bytes where they are wide.
BlockLayout vec8_layout(const Matrices& operand, int64_t rows, int64_t k, int64_t batch);

// True where an operand loads as 16-byte vectors, along k or along the rows.
bool is_vec8(const Matrices& operand, int64_t rows, int64_t k, int64_t batch);

}  // namespace anymps::gemm
