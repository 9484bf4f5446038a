// The passes of a GEMM's plan, on tensors.
#pragma once

#include "kernels/dtype.h"
#include "ops/matmul/gemm.h"
#include "ops/matmul/gemm_plan.h"

namespace anymps::ops {

// Type in which split-K slices are kept.
at::ScalarType accumulator_of(kernels::Compute compute);

// Records all passes of `plan`, which is for g's call. g's sizes are above 0 but for k.
void execute(const Gemm& g, kernels::Compute compute, const GemmPlan& plan);

}  // namespace anymps::ops
