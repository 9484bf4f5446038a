// Passes over an operand: packing for vector loads, splitting of floats, and their amax.
#pragma once

#include "ops/conv/plan.h"
#include "ops/conv/problem.h"

namespace anymps::ops {

// NHWC copy for loads of 16-byte vectors: channels of a group padded to a multiple of 8. An image that is so
// already comes back as it is. ScaledF16 is for images that have an amax; where not all scales are valid its
// memory is left as it is.
ConvTensor add_packed(PlanBuilder& builder, const ConvTensor& image, Form form);

// NC/16HWc16 copy of an image of one group, of whole blocks, for shaders/conv/conv_nosmem_activation.slang:
// [outer, channels / 16, position, 16]. Floats are scaled f16 in this layout where all scales are valid; else
// bf16x2 as add_packed has them.
ConvTensor add_blocked(PlanBuilder& builder, const ConvTensor& image, bool scaled);
// The scaled f16 of add_blocked.
ConvTensor scaled_blocked(ConvTensor image);

// Amax of an image into its state: exact, or sampled before the exact one is known.
void add_amax(PlanBuilder& builder, const ConvTensor& image, bool sample);

}  // namespace anymps::ops
