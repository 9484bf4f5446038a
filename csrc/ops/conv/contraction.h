// The convolution kernels' launcher: contractions of an affine factor (weights, or the gradient of the
// output) with a gathered one (an image).
//
// out[group, f, g] = sum over k of affine[group, f, k] * gathered[group, g, k] + bias[group, f]. The rows g
// of the gathered factor and the reduction index k are each cut into a plain digit (batch or channel) and
// three spatial ones. All strides are in elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/half_range.h"
#include "ops/matmul/tiles.h"

namespace anymps::ops {

using Triple = std::array<int64_t, 3>;  // depth, height, width

struct Digits {
    Triple spatial;
    int64_t plain;
    bool plain_fastest;  // else the slowest

    int64_t positions() const { return spatial[0] * spatial[1] * spatial[2]; }
    int64_t count() const { return plain * positions(); }
};

struct DigitStrides {
    Triple spatial;
    int64_t plain;
};

struct AffineFactor {
    const at::Tensor* tensor;
    int64_t offset;  // of the first element
    int64_t rows, row_stride;
    DigitStrides k;
    int64_t group_stride;
    bool pairs = false;   // floats cut into kPairs of shaders/lib/product.slang
    bool padded = false;  // where rows follow one another, as many as make a multiple of 8 may be read
    uint64_t range = 0;   // address of the HalfRange of floats that are scaled halves here
};

// The position along an axis is row digit * row_step + k digit * k_step + start; outside of 0..size it is
// padding.
struct GatheredFactor {
    const at::Tensor* tensor;
    int64_t row_plain_stride, k_plain_stride;
    Triple row_step, k_step, start, size, stride;
    int64_t group_stride;
    bool pairs = false;
    uint64_t range = 0;
};

struct ConvTarget {
    const at::Tensor* tensor;
    int64_t offset;
    int64_t row_stride;  // of f
    DigitStrides g;
    int64_t group_stride;
    const at::Tensor* bias;          // 1-d, of groups * f; or nullptr
    int64_t plain_end = UINT32_MAX;  // plain digits of g from this one on are padding, and not stored
};

struct Contraction {
    Digits g, k;
    AffineFactor affine;
    GatheredFactor gathered;
    ConvTarget target;
    int64_t groups;
    // Image, Positions, Pairs: the affine factor lies in fragments, and the gathered one in blocks so many
    // elements apart, or as positions that follow one another, of floats as pairs.
    Direct direct = Direct::None;
    int64_t block_stride = 0;
    const at::Tensor* weights = nullptr;  // Pairs: the floats that the fragments were cut from
};

// What multiplies: matrix units where the device has them, unless most rows of their tiles would be idle. f32
// is cut into 2 parts where torch.backends.cudnn lets convolutions use TF32, else into 3.
Arithmetic arithmetic_of(const Contraction& c);

// True where matrix units may multiply such factors as scaled halves: f32 that may lose what TF32 does.
bool may_be_halves(const at::Tensor& factor);

// Which factors matrix tiles read in words of 16 bytes; they can read nothing else.
struct Words {
    bool affine, gathered;

    bool both() const { return affine && gathered; }
};
Words reads_words(std::span<const Contraction> phases);

// True where direct tiles can read the gathered factor as it is, and store their results in words.
bool reads_positions(const Contraction& c);

// True where four results that follow one another are one store.
bool stores_words(std::span<const Contraction> phases);

// Runs contractions that differ in offsets, digit sizes, steps and starts alone (the phases of a strided
// gradient), as few dispatches. Phases without k write the bias or 0; ones without results are left out.
// longest_part: k is cut into parts no longer than this, summed in order (of one contraction only).
// choice: the device runs them, or does not. Raises NotImplementedError for bool and complex.
void run_contractions(std::vector<Contraction> phases, int64_t longest_part = UINT32_MAX,
                      const HalfChoice* choice = nullptr);

// Products for each element of two factors: where few, pairs, which are read once but take three products for
// one, are faster than halves, whose range is looked for before. Limits are measured on an H200.
inline double intensity(int64_t rows, int64_t columns) {
    return static_cast<double>(rows) * columns / (rows + columns);
}

// Adds f32 sums of parts of k, [part][group][row][column], which become the results of a contraction.
void sum_parts(const Contraction& c, const at::Tensor& parts);

}  // namespace anymps::ops
