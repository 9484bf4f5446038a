// A device of each profile, as its driver would describe it, for tests of what is decided without a device.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "vulkan/instance.h"

namespace anymps::vulkan {

// Names begin with those of the profiles.
inline std::vector<DeviceInfo> made_up_devices() {
    struct Row {
        const char* name;
        uint32_t vendor_id, units;
        bool matrix, bf16;
        uint32_t lanes, min_lanes, max_lanes, shared_bytes;
        bool integrated = false, software = false;
    };
    constexpr Row kRows[] = {
        {"software", 0x10005, 0, true, false, 8, 8, 8, 32768, false, true},
        {"NVIDIA H100 SXM", 0x10de, 132, true, true, 32, 32, 32, 49152},
        {"NVIDIA Hopper H200", 0x10de, 132, true, true, 32, 32, 32, 49152},
        {"NVIDIA Ampere RTX 3090", 0x10de, 82, true, true, 32, 32, 32, 49152},
        {"NVIDIA Turing RTX 2060", 0x10de, 30, true, false, 32, 32, 32, 49152},
        {"AMD RDNA3 navi31", 0x1002, 96, true, true, 64, 32, 64, 65536},
        {"AMD RDNA2 navi21", 0x1002, 80, false, false, 64, 32, 64, 65536},
        {"AMD GCN polaris10", 0x1002, 36, false, false, 64, 64, 64, 65536},
        {"Intel Xe2 B580", 0x8086, 0, true, true, 16, 16, 32, 131072},
        {"Intel Xe-HPG A770", 0x8086, 0, true, true, 16, 8, 32, 65536},
        {"Intel Gen9 UHD", 0x8086, 0, false, false, 16, 8, 32, 65536, true},
        {"Qualcomm Adreno 750", 0x5143, 0, false, false, 64, 64, 128, 32768, true},
        {"Arm Mali-G715", 0x13b5, 10, false, false, 16, 16, 16, 32768, true},
        {"Apple M1", 0x106b, 0, false, false, 32, 32, 32, 32768, true},
        {"other GPU", 0x1010, 0, true, true, 32, 32, 32, 32768},
    };
    std::vector<DeviceInfo> devices;
    for (const Row& row : kRows) {
        DeviceInfo info;
        info.name = row.name;
        info.vendor_id = row.vendor_id;
        info.reported_compute_units = row.units;
        info.float16 = true;
        info.cooperative_matrix = row.matrix;
        info.bfloat16 = info.cooperative_matrix_bfloat16 = row.bf16;
        info.subgroup_size = row.lanes;
        info.min_subgroup_size = row.min_lanes;
        info.max_subgroup_size = row.max_lanes;
        info.subgroup_size_control = true;
        info.max_workgroup_size = 1024;
        info.shared_memory_bytes = row.shared_bytes;
        info.is_integrated = row.integrated;
        info.is_software = info.runs_on_cpu = row.software;
        info.profile = &find_profile(info);
        devices.push_back(info);
    }
    return devices;
}

inline DeviceInfo made_up(std::string_view name) {
    for (const DeviceInfo& device : made_up_devices()) {
        if (device.name == name) return device;
    }
    ADD_FAILURE() << "no made-up device of the name " << name;
    return {};
}

}  // namespace anymps::vulkan
