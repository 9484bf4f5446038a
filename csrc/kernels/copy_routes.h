// What the choice of kernels for pointwise_copy depends on, and the kernels that a device would run.
#pragma once

#include <ATen/TensorIterator.h>

#include <array>
#include <cstdint>
#include <string>

#include "kernels/route_device.h"

namespace anymps::kernels {

// Operand 0 is written, operand 1 read. Views of a TensorIterator's, innermost dimension first; bytes.
struct CopyProblem {
    at::ScalarType to, from;
    at::IntArrayRef shape;
    std::array<at::IntArrayRef, 2> strides;
    std::array<uint64_t, 2> address{}, storage{};  // of the first element, of what it lies in
    bool fits_32_bits = true;                      // each operand spans less than 2^31 bytes

    int64_t item() const { return static_cast<int64_t>(c10::elementSize(to)); }
    int64_t numel() const { return c10::multiply_integers(shape); }
};

std::string to_text(const CopyProblem& problem);
const char* copy_route(const CopyProblem& problem, const RouteDevice& device);

// By tiles in shared memory: the operands are contiguous along two different dimensions, both long.
bool transposes(const CopyProblem& problem, const RouteDevice& device);
void transposed_copy(const CopyProblem& problem, at::TensorIteratorBase& iter);
// By larger ones: both sides are whole words, and there is at most one further dimension.
bool transposes_words(const CopyProblem& problem, const RouteDevice& device);
void transposed_words_copy(const CopyProblem& problem, at::TensorIteratorBase& iter);

}  // namespace anymps::kernels
