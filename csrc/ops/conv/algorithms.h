// The algorithms of convolutions, and the choice between them.
#pragma once

#include <span>

#include "ops/conv/direction.h"
#include "ops/conv/plan.h"

namespace anymps::ops {

struct ConvAlgorithm {
    const char* name;
    bool (*supports)(const Direction& d, const ConvDevice& device);
    // Adds the passes. read_first: the first operand, perhaps as a direction before has packed it. Returns it
    // as this one has read it.
    ConvTensor (*plan)(PlanBuilder& builder, const Direction& d, const ConvTensor& read_first);
};

// In the order of preference: the first that supports a direction computes it. Their limits are measured, and
// say where one is faster than those behind it.
std::span<const ConvAlgorithm> conv_algorithms();

// All passes of a problem: amaxes that several directions share, then direction by direction.
ConvPlan make_plan(const ConvProblem& problem, ConvDevice device);

}  // namespace anymps::ops
