#include "kernels/launch_config.h"

#include <algorithm>
#include <bit>

#include "kernels/kernel_lanes.h"
#include "kernels/route_device.h"
#include "runtime/device.h"
#include "vulkan/device_profile.h"
#include "vulkan/instance.h"

namespace anymps::kernels {

namespace {

LaunchConfig launch_config_of(const vulkan::DeviceInfo& info) {
    const vulkan::RowCosts& costs = info.profile->rows;
    LaunchConfig config{.software = info.is_software,
                        .workgroup = info.subgroup_size,
                        .subgroup = info.subgroup_size,
                        .columns = info.subgroup_size,
                        .target_groups = costs.target_groups,
                        .prefetch_loads = costs.prefetch_loads,
                        .min_chunk = costs.min_chunk};
    if (config.software) return config;
    // shaders/lib/reduce.slang has shared memory for 256 threads.
    config.workgroup = std::max(info.subgroup_size, std::min(256u, std::bit_floor(info.max_workgroup_size)));
    config.columns = 32;
    return config;
}

}  // namespace

RouteDevice route_device(const vulkan::DeviceInfo& info) {
    return {launch_config_of(info), &info};
}

const RouteDevice& route_device() {
    static const RouteDevice kDevice = route_device(runtime::device_info());
    return kDevice;
}

const LaunchConfig& launch_config() {
    return route_device();
}

uint32_t power_of_two(uint64_t n, uint32_t at_most) {
    return static_cast<uint32_t>(std::bit_ceil(std::clamp<uint64_t>(n, 1, at_most)));
}

uint32_t subgroup_of(std::string_view kernel, const vulkan::DeviceInfo& device) {
    const bool narrow = device.subgroup_size_control && device.profile->is_narrow(kernel);
    return narrow ? device.min_subgroup_size : device.subgroup_size;
}

LaunchConfig launch_config_of(std::string_view kernel) {
    LaunchConfig result = launch_config();
    result.subgroup = subgroup_of(kernel, runtime::device_info());
    return result;
}

uint32_t threads_per_row(uint64_t rows, uint64_t loads) {
    return threads_per_row(launch_config(), rows, loads);
}

uint32_t threads_per_row(const LaunchConfig& t, uint64_t rows, uint64_t loads) {
    const bool few_rows = rows * t.subgroup < uint64_t{64} * t.workgroup;
    const bool whole = loads > uint64_t{t.subgroup} * 8 || (few_rows && loads > t.workgroup);
    return whole ? t.workgroup : power_of_two(ceil_div(loads, 2), t.subgroup);
}

uint32_t threads_of_columns(uint64_t columns) {
    const LaunchConfig& t = launch_config();
    return t.software ? t.workgroup : power_of_two(columns, t.columns);
}

}  // namespace anymps::kernels
