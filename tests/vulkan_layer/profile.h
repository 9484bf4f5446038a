// A device as tests/devices/*.yaml describes it, from the lines that tests/support/device_profiles.py makes of that.
#pragma once

#include <vulkan/vulkan.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace anymps::device_layer {

struct Profile {
    std::map<std::string, std::string> texts;    // "name", "driver_name", "driver_info"
    std::map<std::string, uint64_t> properties;  // and limits, by Vulkan's names
    std::set<std::string> features;              // by Vulkan's names
    std::set<std::string> lacks;                 // extensions
    std::vector<VkMemoryHeap> heaps;
    std::vector<VkMemoryType> types;
    std::vector<VkQueueFamilyProperties> queues;

    // Replaces a value by the profile's, where that has one of this name.
    template <class T>
    void set(const char* name, T& value) const {
        if (const auto found = properties.find(name); found != properties.end())
            value = static_cast<T>(found->second);
    }
    // A device of this profile has a feature where the driver below has it, too.
    void keep(const char* name, VkBool32& value) const { value = value && features.contains(name); }
};

// Reads the file that ANYMPS_DEVICE_PROFILE names: a line `text NAME VALUE`, `property NAME NUMBER`, `feature
// NAME`, `lacks EXTENSION`, `heap BYTES FLAGS`, `type HEAP FLAGS` or `queue FLAGS COUNT TIMESTAMP_BITS` each.
// Exits with a message where it cannot be read: a test must not run on another device than it says.
const Profile& profile();

}  // namespace anymps::device_layer
