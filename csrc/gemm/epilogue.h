// Steps that follow a product or a convolution, done as its results are stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace anymps::gemm {

// A program of up to four steps, as shaders/lib/epilogue.slang takes it: a byte each, the first one lowest.
struct EpilogueSteps {
    uint32_t code = 0;

    // True where a step has an operand: one for the whole program, which lies as the results do.
    bool has_operand() const { return (code & 0xf0f0f0f0u) != 0; }
    explicit operator bool() const { return code != 0; }
};

// Of their names, in order, with spaces between. For each function f (relu, relu6, hardswish, gelu,
// gelu_tanh, silu, sigmoid, tanh), of results v and their operand x: "f" is f(v), "f_backward" v f'(x) (x is
// the result of sigmoid and tanh, the argument of others), "f_mul" v f(x), "f_add" v + f(x); "mul" is v x,
// "add" v + x. Raises ValueError for other names, and for more than four.
EpilogueSteps epilogue_steps(std::string_view names);

// What a Gemm does to its results. Needs alpha = beta = 1.
struct GemmEpilogue {
    EpilogueSteps steps;
    const at::Tensor* operand = nullptr;  // of the results' dtype and strides; nullptr: no step has one
    const at::Tensor* first = nullptr;    // where to store what the steps begin with, alike; nullptr: nowhere
};

// Raises RuntimeError where an operand is missing, or is there for nothing, or has other sizes or another
// dtype than the results, or where these are not floating point numbers. Returns the operand with the
// results' strides, undefined where there is none.
at::Tensor epilogue_operand(EpilogueSteps steps, const at::Tensor& operand, const at::Tensor& results);

}  // namespace anymps::gemm
