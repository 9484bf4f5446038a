// Per-tensor amax of f32 operands, by which they are scaled to f16 where that loses no more than TF32 would;
// known to the device alone. See shaders/lib/amax.slang.
#pragma once

#include <cstdint>

#include "kernels/kernel_call.h"
#include "ops/amax_state.h"
#include "runtime/zeroed_words.h"

namespace anymps::ops {

// Amax states of `count` tensors, a slot of zeroed words each. Kernels that compute them are recorded before
// those that read them.
struct AmaxStates {
    runtime::ZeroedWords words;
    int64_t count;

    explicit AmaxStates(int64_t count) : words(static_cast<uint64_t>(count)), count(count) {}

    uint64_t address(int64_t index = 0) const { return words.address() + index * AmaxState::kBytes; }
    // Declares all states as read.
    void read_by(kernels::KernelCall& call) const { call.read(address(), count * AmaxState::kBytes); }
};

// Condition of a dispatch: that the scales of all operands are valid, or that one is not. With fused_amax the
// kernel computes the exact amax of its im2col operand while it multiplies by the sampled one; the fallback
// comes after it.
struct ScaleCondition {
    const AmaxStates* amaxes;
    bool scale_valid;
    bool fused_amax = false;
};

// The grid where the condition holds, else no workgroups; for KernelCall::dispatch_pointer.
runtime::ZeroedWords conditional_grid(const ScaleCondition& condition, kernels::Grid grid);

}  // namespace anymps::ops
