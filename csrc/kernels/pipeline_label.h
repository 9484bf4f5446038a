// What profilers and validation messages call a pipeline.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace anymps::kernels {

// "softmax_forward[256,32]".
std::string pipeline_label(std::string_view name, std::span<const uint32_t> specialization);

}  // namespace anymps::kernels
