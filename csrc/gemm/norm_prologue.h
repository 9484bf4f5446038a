// A norm of the rows of a product's first operand, done by the kernel of the product:
// shaders/gemm/matmul_norm.slang.
#pragma once

#include <ATen/core/Tensor.h>

#include "gemm/gemm.h"

namespace anymps::gemm {

// layer_norm (centered) or rms_norm of each row of a [m, k], in f32. weight and bias [k] of any floating
// dtype, or undefined.
struct NormPrologue {
    at::Tensor weight, bias;
    double eps;
    bool centered;
};

// Runs g with norm(a) in place of a, in one dispatch, and returns true; where the device or the sizes have no
// kernel for it, does nothing and returns false. Of floating dtypes, one matrix an operand; a may be of
// another dtype than b.
bool run_with_norm(const Gemm& g, const NormPrologue& norm);

}  // namespace anymps::gemm
