// One device for all tests of a binary.
#pragma once

#include <gtest/gtest.h>

#include "vulkan/device.h"

namespace anymps::vulkan {

inline const Device& test_device() {
    static const auto* const device = [] {
        static const Instance instance;
        const int index = choose_device(instance.physical_devices(), "");
        if (index < 0) throw std::runtime_error("these tests need a Vulkan device");
        return new Device(instance, instance.physical_devices()[index]);
    }();
    return *device;
}

}  // namespace anymps::vulkan
