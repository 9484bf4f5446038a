// Kernels for which a device's profile names a subgroup size of their own.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/launch_config.h"

namespace anymps::kernels {

// launch_config() for a kernel: with the fewest lanes of a subgroup where the profile says so
// (vulkan::DeviceProfile::narrow), so that each has more registers.
LaunchConfig launch_config_of(std::string_view kernel);

// threads_per_row of launch_config.h by such a configuration.
uint32_t threads_per_row(const LaunchConfig& config, uint64_t rows, uint64_t loads);

}  // namespace anymps::kernels
