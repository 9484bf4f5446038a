#include "vulkan/device_profile.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "made_up_devices.h"

namespace anymps::vulkan {
namespace {

TEST(DeviceProfile, EveryRowIsSomeDevices) {
    std::set<std::string> found;
    for (const DeviceInfo& device : made_up_devices()) {
        SCOPED_TRACE(device.name);
        EXPECT_TRUE(device.name.starts_with(device.profile->name)) << device.profile->name;
        found.insert(device.profile->name);
    }
    EXPECT_EQ(found.size(), device_profiles().size());
}

TEST(DeviceProfile, TheLastRowIsForEveryDevice) {
    DeviceInfo device;
    EXPECT_STREQ(find_profile(device).name, "other");
    EXPECT_EQ(&find_profile(device), &device_profiles().back());
}

TEST(DeviceProfile, ARowOfMatrixUnitsIsNotForADeviceThatHasThemSwitchedOff) {
    DeviceInfo device = made_up("NVIDIA Hopper H200");
    device.cooperative_matrix = device.cooperative_matrix_bfloat16 = false;
    EXPECT_STREQ(find_profile(device).name, "NVIDIA Turing");
}

TEST(DeviceProfile, ComputeUnitsAreTheDriversOrAGuess) {
    EXPECT_EQ(made_up("NVIDIA Hopper H200").compute_units(), 132u);
    EXPECT_EQ(made_up("Intel Xe-HPG A770").compute_units(), 32u);
    EXPECT_EQ(made_up("Intel Gen9 UHD").compute_units(), 8u);
    DeviceInfo software = made_up("software");
    software.reported_compute_units = 64;
    EXPECT_EQ(software.compute_units(), 2u);
}

TEST(DeviceProfile, SubmissionsAreCutWhereSomebodyWatches) {
    DeviceInfo amd = made_up("AMD RDNA3 navi31"), nvidia = made_up("NVIDIA Hopper H200");
    EXPECT_EQ(amd.max_submission_seconds(), 0.5);
    EXPECT_TRUE(amd.splits_dispatches());
    EXPECT_EQ(nvidia.max_submission_seconds(), 0);
    EXPECT_EQ(made_up("software").max_submission_seconds(), 0);
    amd.asked_submission_seconds = 0;
    EXPECT_EQ(amd.max_submission_seconds(), 0);
    EXPECT_FALSE(amd.splits_dispatches());
    nvidia.asked_submission_seconds = 2;
    EXPECT_EQ(nvidia.max_submission_seconds(), 2);
    EXPECT_FALSE(nvidia.splits_dispatches());
    DeviceInfo software = made_up("software");
    software.asked_submission_seconds = 1e-6;
    EXPECT_TRUE(software.splits_dispatches());
}

TEST(DeviceProfile, ExcludesKernelsByName) {
    const DeviceProfile& amd = *made_up("AMD RDNA3 navi31").profile;
    EXPECT_TRUE(amd.excludes("conv_matrix_256x128x32_f16"));
    EXPECT_FALSE(amd.excludes("conv_matrix_128x128x32_f16"));
    EXPECT_TRUE(amd.excludes("flash_backward_query_64_1x8x32_bf16"));
    EXPECT_FALSE(amd.excludes("flash_backward_query_64_staged_bf16"));
    EXPECT_TRUE(amd.excludes("conv_wgrad_3x3_64x144_f16"));
    EXPECT_FALSE(amd.excludes("conv_wgrad_pack_image"));
    const DeviceProfile& intel = *made_up("Intel Xe-HPG A770").profile;
    EXPECT_FALSE(intel.excludes("matmul_shared_128x128_f32"));
    EXPECT_FALSE(intel.excludes("conv_shared_128x128_f32"));
    EXPECT_TRUE(made_up("Intel Xe2 B580").profile->excludes("softmax_long_forward_f32_persistent"));
    for (const DeviceProfile& profile : device_profiles()) {
        for (const Exclusion& exclusion : profile.excluded)
            EXPECT_GT(std::string_view(exclusion.reason).size(), 8u);
    }
}

TEST(DeviceProfile, AllButNvidiaAmdAndSoftwareHaveFewRegisters) {
    for (const DeviceInfo& device : made_up_devices()) {
        SCOPED_TRACE(device.name);
        const bool intel = device.name.starts_with("Intel"), before_xe2 = device.min_subgroup_size == 8;
        const bool many =
            device.is_software || device.name.starts_with("NVIDIA") || device.name.starts_with("AMD");
        EXPECT_EQ(device.profile->lean(), !many);
        EXPECT_EQ(device.profile->is_narrow("norm_gradients_f32_rows"), intel && before_xe2);
        EXPECT_FALSE(device.profile->is_narrow("sum_f32_rows"));
        for (const Exclusion& narrow : device.profile->narrow)
            EXPECT_GT(std::string_view(narrow.reason).size(), 8u);
    }
}

TEST(DeviceProfile, ScalesAreOneUntilRatesAreMeasured) {
    for (const DeviceProfile& p : device_profiles()) {
        for (const Rate rate : {Rate::SimtF32, Rate::MatrixF16, Rate::MatrixBf16}) {
            EXPECT_EQ(p.product_scale(rate), 1.0);
            EXPECT_EQ(p.unit_scale(rate), 1.0);
        }
        EXPECT_EQ(p.launch_scale(), 1.0);
        if (std::string_view(p.name) != "NVIDIA H100") EXPECT_EQ(p.bytes_scale(), 1.0) << p.name;
    }
    EXPECT_NEAR(made_up("NVIDIA H100 SXM").profile->bytes_scale(), 1.33, 0.01);
    const DeviceProfile hopper = *made_up("NVIDIA Hopper H200").profile;
    DeviceRates rates = hopper.rates;
    rates.bytes /= 8;
    rates.launch *= 2;
    rates.matrix_f16 /= 4;
    rates.matrix_bf16 = 0;  // unknown
    rates.units /= 2;
    const DeviceProfile slower = with_rates(hopper, rates);
    EXPECT_DOUBLE_EQ(slower.bytes_scale(), 8);
    EXPECT_DOUBLE_EQ(slower.launch_scale(), 2);
    EXPECT_DOUBLE_EQ(slower.product_scale(Rate::MatrixF16), 4);
    EXPECT_DOUBLE_EQ(slower.unit_scale(Rate::MatrixF16), 2);
    EXPECT_DOUBLE_EQ(slower.product_scale(Rate::MatrixBf16), 1);
}

TEST(DeviceProfile, RatesGoToTextAndBack) {
    const DeviceRates rates{.launch = 5.5e-6,
                            .bytes = 5.12e11,
                            .simt_f32 = 1.7e13,
                            .matrix_f16 = 6e13,
                            .matrix_bf16 = 0,
                            .units = 32};
    DeviceRates read;
    ASSERT_TRUE(parse_rates(rates_text(rates), read));
    EXPECT_EQ(rates_text(read), rates_text(rates));
    EXPECT_EQ(read.bytes, rates.bytes);
    for (const char* text : {"launch", "launch=", "launch=x", "launch=-1", "speed=1", "bytes=nan", "=1"}) {
        EXPECT_FALSE(parse_rates(text, read)) << text;
        EXPECT_EQ(read.bytes, rates.bytes);
    }
}

TEST(DeviceProfile, ARowIsText) {
    DeviceInfo device = made_up("AMD RDNA3 navi31");
    const DeviceProfile measured = with_rates(*device.profile, {.launch = 4e-6, .bytes = 8e11, .units = 96});
    device.profile = &measured;
    const std::string row = row_text(device);
    EXPECT_NE(row.find("{.name = \"AMD RDNA3 navi31\",  // planned as AMD RDNA3\n"), std::string::npos)
        << row;
    EXPECT_NE(row.find(".match = {.vendor_id = 0x1002, .matrix = true"), std::string::npos) << row;
    EXPECT_NE(row.find(".compute_units = 96"), std::string::npos) << row;
    EXPECT_NE(row.find(".rates = {.launch = 4e-06, .bytes = 8e+11"), std::string::npos) << row;
    EXPECT_NE(row.find(".discrete = true"), std::string::npos) << row;
    device.is_software = true;
    EXPECT_NE(row_text(device).find(".software = true, .min_subgroup_size"), std::string::npos)
        << row_text(device);
}

}  // namespace
}  // namespace anymps::vulkan
