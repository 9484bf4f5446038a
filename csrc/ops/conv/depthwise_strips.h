// Depthwise convolutions in two dimensions of 3, 5 or 7 taps along an axis, by strips of results
// (shaders/conv/conv_depthwise_strips.slang, shaders/conv/conv_depthwise_weight.slang).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ops/conv/direction.h"
#include "ops/conv/plan.h"

namespace anymps::ops {

// An image or filter of a depthwise convolution, without groups.
struct DepthwiseImage {
    Memory memory;
    // Batch, channel, depth, height, width; strides are in elements, and 0 where the size is 1.
    std::array<uint32_t, 5> sizes, strides;
    bool channels_fast;  // channels are the fastest in memory

    std::array<uint32_t, 3> spatial() const { return {sizes[2], sizes[3], sizes[4]}; }
    bool is_empty() const;
};

// Raise RuntimeError for a size or stride above 2^31.
DepthwiseImage activation_image(const ConvTensor& t, int64_t groups);
DepthwiseImage filter_image(const ConvTensor& t, int64_t groups);

// The operands by position: from an image to the result, or from x to the gradient of y for that of the taps.
struct DepthwiseOperands {
    DepthwiseImage from, to, taps;

    DepthwiseOperands(const ConvProblem& problem, Direction::Kind kind);
};

// Floating-point operations of each direction, for the estimate of its time.
double depthwise_operations(const ConvProblem& problem);

// What the kernels of strips make of a convolution. Axes are 3 (height) and 4.
struct Strips {
    int along, across;
    bool channels_fast;               // of the results
    bool words;                       // four channels a thread, not one
    uint32_t taps, stride, dilation;  // along the strips

    uint32_t kernel() const { return (taps - 3) / 2; }
    uint32_t channels_a_thread() const { return words ? 4 : 1; }
};

// Empty where strips do not serve it.
std::optional<Strips> strips_of(const DepthwiseOperands& o, const ConvParams& params, Direction::Kind kind);

// The passes of fprop or dgrad, and of wgrad, whose splits are added in a fixed order.
void add_image_strips(PlanBuilder& builder, const Strips& strips, const DepthwiseOperands& o, bool gradient);
void add_weight_strips(PlanBuilder& builder, const Strips& strips, const DepthwiseOperands& o);

}  // namespace anymps::ops
