// What kernels are compiled for. tools/shader_compiler/slang_compiler.cpp sets the same: a kernel of the
// archive and one of the run-time compiler are alike.
#pragma once

#include <cstddef>

#include "slang.h"

namespace anymps::compiler {

constexpr const char* kProfile = "spirv_1_5";
constexpr SlangTargetFlags kTargetFlags = SLANG_TARGET_FLAG_GENERATE_SPIRV_DIRECTLY;
// "Profile implicitly upgraded": the profile is the floor, subgroup operations add their capabilities to it.
constexpr const char* kDisabledWarning = "41012";
constexpr size_t kPushConstantBytes = 128;  // what every Vulkan device has

}  // namespace anymps::compiler
