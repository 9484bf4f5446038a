// What the choice of a route may ask of a device.
#pragma once

#include "kernels/launch_config.h"
#include "vulkan/instance.h"

namespace anymps::kernels {

struct RouteDevice : LaunchConfig {
    const vulkan::DeviceInfo* info;

    const vulkan::RowCosts& costs() const { return info->profile->rows; }
};

// Of any device, which must live as long.
RouteDevice route_device(const vulkan::DeviceInfo& info);
// Of the current one; read once.
const RouteDevice& route_device();

}  // namespace anymps::kernels
