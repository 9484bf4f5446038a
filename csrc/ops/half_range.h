// f32 factors of products as scaled f16 where that loses no more than TF32 would; what decides is known to
// the device alone. See shaders/lib/half_range.slang.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/kernel_call.h"

namespace anymps::ops {

// What kernels find out about `count` tensors, as two words each that begin as zeros. Its commands are
// recorded in order: first the ranges of all tensors, then whatever asks for them.
struct HalfRanges {
    static constexpr uint64_t kBytes = 8;  // of one

    at::Tensor words;
    int64_t count;

    explicit HalfRanges(int64_t count, at::TensorOptions options);

    uint64_t address(int64_t index = 0) const { return kernels::address(words) + index * kBytes; }
};

// For whom a dispatch is: products whose factors all fit, or others.
struct HalfChoice {
    const HalfRanges* ranges;
    bool fit;
};

// The grid, or no workgroups, for KernelCall::dispatch_pointer.
at::Tensor grid_of(const HalfChoice& choice, kernels::Grid grid);

}  // namespace anymps::ops
