// Convolutions as implicit GEMMs of a strided operand (filter, or gradient of the output) with an im2col
// operand (activation).
//
// out[group, f, g] = sum over k of strided[group, f, k] * im2col[group, g, k] + bias[group, f]. The rows g of
// the im2col operand and the reduction index k are coordinates: n or c, and three spatial ones. All strides
// are in elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/amax.h"
#include "ops/matmul/tiles.h"

namespace anymps::ops {

using Dim3 = std::array<int64_t, 3>;  // depth, height, width

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
    const at::Tensor* tensor;
    int64_t offset;  // first element
    int64_t rows, row_stride;
    CoordinateStrides k;
    int64_t group_stride;
    bool pairs = false;       // floats split into kBf16x2 of shaders/lib/product.slang
    bool padded = false;      // contiguous rows may be read up to a multiple of 8
    uint64_t amax_state = 0;  // address of the AmaxState of floats that are scaled f16 here; 0: not scaled
};

// Position along an axis: row coordinate * row_step + k coordinate * k_step + start; padding outside of
// 0..size.
struct Im2colOperand {
    const at::Tensor* tensor;
    int64_t row_nc_stride, k_nc_stride;
    Dim3 row_step, k_step, start, size, stride;
    int64_t group_stride;
    bool pairs = false;
    uint64_t amax_state = 0;
};

struct ConvTarget {
    const at::Tensor* tensor;
    int64_t offset;
    int64_t row_stride;  // stride of f
    CoordinateStrides g;
    int64_t group_stride;
    const at::Tensor* bias;       // 1-d, of groups * f; or nullptr
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
    ConvAlgo algo = ConvAlgo::Staged;
    int64_t block_stride = 0;
    const at::Tensor* weights = nullptr;  // NoSmemBf16x2: the floats that the fragments were split from
};

// Arithmetic: matrix units where the device has them, unless most rows of their tiles would be idle. f32 is
// bf16x2 where torch.backends.cudnn lets convolutions use TF32, else bf16x3.
Arithmetic arithmetic_of(const ImplicitGemm& c);

// True where matrix units may multiply such operands as scaled f16: f32 that may lose what TF32 does.
bool may_use_scaled_f16(const at::Tensor& factor);

// Operands that the tiles of matrix units load as 16-byte vectors; they can load nothing else.
struct Vectorizable {
    bool strided, im2col;

    bool both() const { return strided && im2col; }
};
Vectorizable is_vectorizable(std::span<const ImplicitGemm> phases);

// True where no-smem tiles can load the im2col operand as it is, and store vec4.
bool reads_positions(const ImplicitGemm& c);

// True where results store as vec4.
bool stores_vec4(std::span<const ImplicitGemm> phases);

// Runs implicit GEMMs that differ in offsets, coordinate sizes, steps and starts alone (the phases of a
// strided gradient), in few dispatches. Phases without k write the bias or 0; ones without results are left
// out. max_k_per_split: split-K slices are no longer than this, and added in order (of one GEMM only).
// choice: whether the device runs them. Raises NotImplementedError for bool and complex.
void run_implicit_gemms(std::vector<ImplicitGemm> phases, int64_t max_k_per_split = UINT32_MAX,
                        const ScaleCondition* condition = nullptr);

// Arithmetic intensity: products for each element of two operands. Where it is low, bf16x2, read once but
// multiplied three times, is faster than scaled f16, whose amax takes a pass before: see vulkan::PlanCosts.
inline double intensity(int64_t rows, int64_t columns) {
    return static_cast<double>(rows) * columns / (rows + columns);
}

// Reduces an f32 split-K workspace [split][group][row][column] to the results of an implicit GEMM.
void reduce_split_k(const ImplicitGemm& c, const at::Tensor& workspace);

}  // namespace anymps::ops
