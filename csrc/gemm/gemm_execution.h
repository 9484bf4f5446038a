// The passes of a GEMM's plan, on tensors.
#pragma once

#include "gemm/gemm.h"
#include "gemm/gemm_plan.h"
#include "kernels/dtype.h"

namespace anymps::gemm {

// Type in which split-K slices are kept.
at::ScalarType accumulator_of(kernels::Compute compute);

// Records all passes of `plan`, which is for g's call. g's sizes are above 0 but for k.
void execute(const Gemm& g, kernels::Compute compute, const GemmPlan& plan);

}  // namespace anymps::gemm
