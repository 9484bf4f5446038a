// The passes of a GEMM's plan, on tensors.
#pragma once

#include <anymps/shaders/gemm/gemm_scheduler.h>

#include "gemm/gemm.h"
#include "gemm/gemm_plan.h"
#include "kernels/dtype.h"
#include "kernels/kernel_call.h"

namespace anymps::gemm {

// Type in which split-K slices are kept.
at::ScalarType accumulator_of(kernels::Compute compute);

// What every mainloop is told of a product without split-K.
shaders::gemm_scheduler::GemmArgs gemm_args(const Gemm& g, kernels::Compute compute);

// True where rows of the results store as vec4, and what lies as they do can be read so.
bool has_vec4_rows(const shaders::gemm_scheduler::GemmArgs& args, const Gemm& g);

// What every kernel of a product reads and writes beside its operands.
void declare_results(kernels::KernelCall& call, const Gemm& g);

// Records all passes of `plan`, which is for g's call. g's sizes are above 0 but for k.
void execute(const Gemm& g, kernels::Compute compute, const GemmPlan& plan);

}  // namespace anymps::gemm
