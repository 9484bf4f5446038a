// Weight gradients (wgrad) on matrix units without shared memory: shaders/conv_wgrad.slang.
#pragma once

#include "ops/conv/conv_params.h"
#include "ops/conv/conv_tensor.h"
#include "ops/conv/implicit_gemm.h"

namespace anymps::ops {

// True where wgrad_3x3 may compute `plain`: 16 bits, 3 x 3 taps, stride and padding of 1.
bool may_be_wgrad_3x3(const ImplicitGemm& plain, const ConvParams& axes, const ConvTensor& x,
                      const ConvTensor& y);

// True where wgrad_1x1 may: one tap, of images whose positions follow one another. Floats lose no more
// than TF32 would, whatever their range.
bool may_be_wgrad_1x1(const ImplicitGemm& plain, const ConvTensor& x, const ConvTensor& y);

// plain: the weight gradient of x and y. Split-K keeps sums near `longest_sum` positions, unless that takes
// too many slices.
void wgrad_3x3(const ImplicitGemm& plain, const ConvTensor& x, const ConvTensor& y, int64_t longest_sum);
void wgrad_1x1(const ImplicitGemm& plain, const ConvTensor& x, const ConvTensor& y, int64_t longest_sum);

}  // namespace anymps::ops
