// Convolutions as implicit GEMMs of a strided operand (filter, or gradient of the output) with an im2col
// operand (activation).
//
// out[group, f, g] = sum over k of strided[group, f, k] * im2col[group, g, k] + bias[group, f]. The rows g of
// the im2col operand and the reduction index k are coordinates: n or c, and three spatial ones. All strides
// are in elements.
#pragma once

#include <cstdint>
#include <vector>

#include "gemm/tiles.h"
#include "ops/conv/plan.h"
#include "ops/conv/problem.h"

namespace anymps::ops {

struct Coordinates {
    Dim3 spatial;
    int64_t n_or_c;
    bool channels_last;  // else the slowest

    int64_t positions() const { return spatial[0] * spatial[1] * spatial[2]; }
    int64_t count() const { return n_or_c * positions(); }
};

struct CoordinateStrides {
    Dim3 spatial;
    int64_t n_or_c;
};

struct StridedOperand {
    Memory memory;
    int64_t offset;  // first element
    int64_t rows, row_stride;
    CoordinateStrides k;
    int64_t group_stride;
    bool pairs = false;   // floats split into kBf16x2 of shaders/lib/product.slang
    bool padded = false;  // contiguous rows may be read up to a multiple of 8
    int32_t amax = -1;    // number of the AmaxState of floats that are scaled f16 here; -1: not scaled
};

// Position along an axis: row coordinate * row_step + k coordinate * k_step + start; padding outside of
// 0..size.
struct Im2colOperand {
    Memory memory;
    int64_t row_nc_stride, k_nc_stride;
    Dim3 row_step, k_step, start, size, stride;
    int64_t group_stride;
    bool pairs = false;
    int32_t amax = -1;
};

struct ConvTarget {
    Memory memory;
    int64_t offset;
    int64_t row_stride;  // stride of f
    CoordinateStrides g;
    int64_t group_stride;
    Memory bias{};  // 1-d, of groups * f; or undefined
    int64_t bias_stride = 0;
    ConvEpilogue epilogue{};
    int64_t nc_end = UINT32_MAX;  // n or c coordinates of g from this one on are padding, and not stored
};

struct ImplicitGemm {
    Coordinates g, k;
    StridedOperand strided;
    Im2colOperand im2col;
    ConvTarget target;
    int64_t groups;
    // NoSmem*: the strided operand is fragment-packed; the im2col one is NC/16HWc16 with blocks block_stride
    // elements apart, or contiguous positions, of floats as bf16x2.
    gemm::ConvAlgo algo = gemm::ConvAlgo::Staged;
    int64_t block_stride = 0;
    Memory weights{};  // NoSmemBf16x2: the floats that the fragments were split from

    uint64_t products() const { return static_cast<uint64_t>(groups) * strided.rows * g.count() * k.count(); }
};

// Arithmetic: matrix units where the device has them, unless most rows of their tiles would be idle. f32 is
// bf16x2 where torch.backends.cudnn lets convolutions use TF32, else bf16x3.
gemm::Arithmetic arithmetic_of(const ConvDevice& device, const ImplicitGemm& c);

// Arithmetic intensity: products for each element of two operands. Where it is low, bf16x2, read once but
// multiplied three times, is faster than scaled f16, whose amax takes a pass before: see vulkan::PlanCosts.
inline double intensity(int64_t rows, int64_t columns) {
    return static_cast<double>(rows) * columns / (rows + columns);
}

// Plans implicit GEMMs that differ in offsets, coordinate sizes, steps and starts alone (the phases of a
// strided gradient), in few dispatches. Phases without k write the bias or 0; ones without results are left
// out. max_k_per_split: split-K slices are no longer than this, and added in order (of one GEMM only).
// Raises NotImplementedError for bool and complex.
void add_implicit_gemms(PlanBuilder& builder, std::vector<ImplicitGemm> phases, int64_t max_k_per_split,
                        When when = When::Always);

// Plans the sum of an f32 split-K workspace [split][group][row][column] into the results of an implicit GEMM.
void add_reduce_split_k(PlanBuilder& builder, const ImplicitGemm& c, const Memory& workspace,
                        int64_t split_k);

}  // namespace anymps::ops
