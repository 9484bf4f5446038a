// The device's clock and the host's, read at one moment.
#pragma once

#include <cstdint>
#include <optional>

#include "vulkan/api.h"

namespace anymps::vulkan {

class Device;

struct CalibratedTime {
    uint64_t ticks;  // as QueryPool::read gives them
    int64_t monotonic_ns;
};

// The extension that reads both clocks, as the driver names it, where it knows CLOCK_MONOTONIC; else nullptr.
// ANYMPS_CAPS=minimal leaves it out.
const char* calibrated_timestamps_extension(VkInstance instance, VkPhysicalDevice device);

// nullopt where the driver has no such extension, or fails. About a microsecond apart.
std::optional<CalibratedTime> calibrated_time(const Device& device);

}  // namespace anymps::vulkan
