// Depthwise convolutions: groups of one channel of x each.
#pragma once

#include "ops/conv/direction.h"

namespace anymps::ops {

// True where these kernels are the better ones: few channels of y a group, floating types, and a GPU or a
// square of taps that strips serve.
bool is_depthwise(const ConvProblem& problem, Direction::Kind kind, const ConvDevice& device);

// Plan of algorithms.h. Gradients of the weight are split, and the slices added in a fixed order.
ConvTensor add_depthwise(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first);

}  // namespace anymps::ops
