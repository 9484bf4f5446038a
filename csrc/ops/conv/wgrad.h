// Weight gradients (wgrad) on matrix units without shared memory: shaders/conv/conv_wgrad.slang. Split-K
// keeps sums near kLongestSum positions, unless that takes too many slices.
#pragma once

#include "ops/conv/direction.h"

namespace anymps::ops {

// The most terms of a sum: matrix units add with truncation, and small terms are lost in long sums.
constexpr int64_t kLongestSum = 4096;

// 16 bits, 3 x 3 taps, stride and padding of 1.
bool supports_wgrad_3x3(const Direction& d, const ConvDevice& device);
// One tap, of images whose positions follow one another. Floats lose no more than TF32 would, whatever their
// range.
bool supports_wgrad_1x1(const Direction& d, const ConvDevice& device);

// Plans of algorithms.h.
ConvTensor add_wgrad_3x3(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first);
ConvTensor add_wgrad_1x1(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first);

}  // namespace anymps::ops
