// Gradients of weights on matrix units without shared memory: shaders/conv_weight.slang.
#pragma once

#include "ops/conv/axes.h"
#include "ops/conv/contraction.h"
#include "ops/conv/image.h"

namespace anymps::ops {

// True where weight_by_lines may compute what `plain` does: 16 bits, 3 x 3 taps, stride and padding of 1.
bool may_be_weight_by_lines(const Contraction& plain, const Axes& axes, const Image& x, const Image& y);

// True where weight_by_rows may: one tap, of images whose positions follow one another. Floats lose no more
// than TF32 would, whatever their range.
bool may_be_weight_by_rows(const Contraction& plain, const Image& x, const Image& y);

// plain: the weight's gradient of x and y. No sum is of many more than `longest_sum` positions, unless that
// takes too many parts.
void weight_by_lines(const Contraction& plain, const Image& x, const Image& y, int64_t longest_sum);
void weight_by_rows(const Contraction& plain, const Image& x, const Image& y, int64_t longest_sum);

}  // namespace anymps::ops
