// One dispatch of the convolution kernels: a contraction of an affine factor with a gathered one.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace anymps::ops {

// Rows f and a reduction index k = (k1, k0), each with one stride (in elements).
struct AffineFactor {
    const at::Tensor* tensor;
    int64_t rows, row_stride;
    int64_t k0_size, k0_stride, k1_stride;
    int64_t group_stride;
};

// Elements of an image. Rows g and the reduction index k are each cut into a plain digit (batch or channel)
// and three spatial ones; the position along an axis is (digit of g * row_step + digit of k * k_step + start)
// / divisor and must be whole and inside the image, else the element is 0.
struct GatheredFactor {
    const at::Tensor* tensor;
    struct Digits {
        int64_t plain_size, plain_stride;
        std::array<int64_t, 3> spatial_sizes;
        bool plain_fastest;
        int64_t count() const { return plain_size * spatial_sizes[0] * spatial_sizes[1] * spatial_sizes[2]; }
    } row, k;
    std::array<int64_t, 3> row_step, k_step, start, divisor, sizes, strides;
    int64_t group_stride;
};

// Where results go: out[group, f, g], g = (g1, g0).
struct ConvTarget {
    const at::Tensor* tensor;
    int64_t f_stride, g0_size, g0_stride, g1_stride, group_stride;
    const at::Tensor* bias = nullptr;  // 1-d, of groups * f
};

struct Contraction {
    AffineFactor affine;
    GatheredFactor gathered;
    ConvTarget target;
    int64_t groups;
    int64_t longest_part = UINT32_MAX;  // of k; parts are summed in order

    // All sizes are at least 1. Raises NotImplementedError for bool and complex.
    void run() const;
};

}  // namespace anymps::ops
