// Arguments and specialization constants of the kernels of pointwise.yaml, as shaders/lib/pointwise.slang has
// them.
#pragma once

#include <anymps/shaders/pointwise_0.h>

#include <cstddef>
#include <cstdint>

namespace anymps::kernels {

// One of the files of functors: all import the same arguments and constants.
namespace pointwise_shader = shaders::pointwise_0;

constexpr size_t kMaxInputs = shaders::pointwise::kMaxInputs;
constexpr size_t kMaxOutputs = shaders::pointwise::kMaxOutputs;
constexpr size_t kMaxScalars = shaders::pointwise::kMaxScalars;

// Codes of operands, by their number.
inline uint32_t& input_code(pointwise_shader::Constants& constants, size_t k) {
    using Constants = pointwise_shader::Constants;
    constexpr uint32_t Constants::*kCodes[kMaxInputs] = {&Constants::in0, &Constants::in1, &Constants::in2,
                                                         &Constants::in3};
    return constants.*kCodes[k];
}
inline uint32_t& output_code(pointwise_shader::Constants& constants, size_t k) {
    return k == 0 ? constants.out0 : constants.out1;
}

}  // namespace anymps::kernels
