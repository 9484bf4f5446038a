#include "vulkan/instance.h"

#include <gtest/gtest.h>

namespace anymps::vulkan {
namespace {

PhysicalDevice named(const char* name, bool software, bool integrated, const char* unsuitable = "") {
    PhysicalDevice device;
    device.info.name = name;
    device.info.is_software = software;
    device.info.is_integrated = integrated;
    device.unsuitable = unsuitable;
    return device;
}

TEST(ChooseDevice, PrefersDiscreteThenIntegratedThenSoftware) {
    const std::vector<PhysicalDevice> devices = {named("llvmpipe", true, false), named("Iris", false, true),
                                                 named("Radeon RX", false, false)};
    EXPECT_EQ(choose_device(devices, ""), 2);
    EXPECT_EQ(choose_device({devices[0], devices[1]}, ""), 1);
    EXPECT_EQ(choose_device({devices[0]}, ""), 0);
}

TEST(ChooseDevice, SkipsUnsuitableOnes) {
    const std::vector<PhysicalDevice> devices = {named("Old", false, false, "it lacks shaderInt64"),
                                                 named("llvmpipe", true, false)};
    EXPECT_EQ(choose_device(devices, ""), 1);
    EXPECT_EQ(choose_device(devices, "0"), -1);
    EXPECT_EQ(choose_device(devices, "old"), -1);
}

TEST(BestDevices, AreAllOfTheBestKind) {
    const std::vector<PhysicalDevice> devices = {
        named("llvmpipe", true, false), named("Radeon A", false, false), named("Iris", false, true),
        named("Radeon B", false, false), named("Old", false, false, "it lacks shaderInt64")};
    EXPECT_EQ(best_devices(devices), (std::vector{1, 3}));
    EXPECT_EQ(best_devices({devices[0], devices[4]}), (std::vector{0}));
    EXPECT_TRUE(best_devices({devices[4]}).empty());
}

TEST(ChooseDevice, TakesIndexOrPartOfTheNameInAnyCase) {
    const std::vector<PhysicalDevice> devices = {named("Radeon RX", false, false),
                                                 named("LLVMpipe 15", true, false)};
    EXPECT_EQ(choose_device(devices, "1"), 1);
    EXPECT_EQ(choose_device(devices, "llvm"), 1);
    EXPECT_EQ(choose_device(devices, "RADEON"), 0);
    EXPECT_EQ(choose_device(devices, "geforce"), -1);
    EXPECT_EQ(choose_device(devices, "7"), -1);
}

TEST(Instance, FindsASuitableDevice) {
    const Instance instance;
    const int index = choose_device(instance.physical_devices(), "");
    ASSERT_GE(index, 0);
    const DeviceInfo& info = instance.physical_devices()[index].info;
    EXPECT_FALSE(info.name.empty());
    EXPECT_GE(info.subgroup_size, 4u);
    EXPECT_LE(info.subgroup_size, 128u);
    EXPECT_GE(info.push_constant_bytes, 128u);
    EXPECT_GE(info.max_workgroup_size, 128u);
    EXPECT_FALSE(info.heaps.empty());
}

TEST(Version, IsThreeNumbers) {
    EXPECT_EQ(version_string(VK_MAKE_API_VERSION(0, 1, 3, 302)), "1.3.302");
}

}  // namespace
}  // namespace anymps::vulkan
