// Lanes that products on FMA are compiled for.
#pragma once

#include <cstdint>

#include "vulkan/device_profile.h"
#include "vulkan/instance.h"

namespace anymps::gemm {

// The fewest where a subgroup of the profile's size leaves a thread 64 registers, as on Intel before Xe2: in
// half of the lanes it has twice as many, and a tile of 64 x 64 or 128 x 128 spills none.
inline uint32_t simt_lanes(const vulkan::DeviceInfo& device) {
    const vulkan::DeviceProfile& profile = *device.profile;
    const bool fewer = device.subgroup_size_control && profile.subgroup_size > device.min_subgroup_size &&
                       profile.registers <= 64;
    return fewer ? device.min_subgroup_size : device.subgroup_size;
}

}  // namespace anymps::gemm
