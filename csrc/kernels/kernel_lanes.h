// Kernels for which a device's profile names a subgroup size of their own.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/launch_config.h"
#include "vulkan/instance.h"

namespace anymps::kernels {

// Lanes of a kernel's subgroups: the fewest where the profile says so (vulkan::DeviceProfile::narrow), so
// that each has more registers.
uint32_t subgroup_of(std::string_view kernel, const vulkan::DeviceInfo& device);

// launch_config() for a kernel, with its subgroup size.
LaunchConfig launch_config_of(std::string_view kernel);

// threads_per_row of launch_config.h by such a configuration.
uint32_t threads_per_row(const LaunchConfig& config, uint64_t rows, uint64_t loads);

}  // namespace anymps::kernels
