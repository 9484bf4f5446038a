// One of the three results of a convolution, as implicit GEMMs.
#pragma once

#include <optional>
#include <vector>

#include "ops/conv/implicit_gemm.h"
#include "ops/conv/phases.h"
#include "ops/conv/problem.h"

namespace anymps::ops {

struct Direction {
    enum class Kind { Fprop, Dgrad, Wgrad };

    Kind kind;
    ConvParams params;
    int64_t groups, taps;
    // The operands in the order that the algorithms take them. Fprop: x, w; dgrad: y, w transposed; wgrad:
    // y, x.
    ConvTensor first, second, result;
    Memory bias;
    int64_t bias_stride;
    ConvEpilogue epilogue;
    std::optional<Phases> phases;  // dgrad: where its phases do not lie as they do in the result
    bool depthwise = false;
    bool scaled = false;  // the device finds out whether f32 operands can be multiplied as scaled f16
    // The amax of `first` is sampled: the kernel that reads it computes the exact one.
    bool fused_amax = false;
    std::vector<ImplicitGemm> plain;  // gemms(first, second)

    // Of operands that may be packed, or read in another form. One GEMM; of a dgrad one for each phase that
    // taps reach, or all where there is a bias.
    std::vector<ImplicitGemm> gemms(const ConvTensor& first, const ConvTensor& second) const;
};

// The wanted directions of a problem, in the order of execution.
std::vector<Direction> directions_of(const ConvProblem& problem, const ConvDevice& device);

}  // namespace anymps::ops
