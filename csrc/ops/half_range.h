// f32 factors of products as scaled f16 where that loses no more than TF32 would; what decides is known to
// the device alone. See shaders/lib/half_range.slang.
#pragma once

#include <cstdint>

#include "kernels/kernel_call.h"
#include "runtime/zeroed_words.h"

namespace anymps::ops {

// What kernels find out about `count` tensors, a slot of zeroed words each. Its commands are recorded in
// order: first the ranges of all tensors, then whatever asks for them.
struct HalfRanges {
    static constexpr uint64_t kBytes = runtime::ZeroedWords::kSlotBytes;  // of one
    // Of these: what is found out, and from there on a guess.
    static constexpr uint64_t kFound = 8;

    runtime::ZeroedWords words;
    int64_t count;

    explicit HalfRanges(int64_t count) : words(static_cast<uint64_t>(count)), count(count) {}

    uint64_t address(int64_t index = 0) const { return words.address() + index * kBytes; }
    // Names all of them as read.
    void read_by(kernels::KernelCall& call) const { call.read(address(), count * kBytes); }
};

// For whom a dispatch is: products whose factors all fit, or others. One that sees finds out the range of its
// gathered factor while it multiplies as if all fitted; what is for others comes after it.
struct HalfChoice {
    const HalfRanges* ranges;
    bool fit;
    bool sees = false;
};

// The grid, or no workgroups, for KernelCall::dispatch_pointer.
runtime::ZeroedWords grid_of(const HalfChoice& choice, kernels::Grid grid);

}  // namespace anymps::ops
