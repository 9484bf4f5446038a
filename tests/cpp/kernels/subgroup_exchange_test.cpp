// Subgroup operations done in shared memory give what the device's own give.
#include "vulkan/subgroup_exchange.h"

#include <algorithm>
#include <random>

#include "kernel_runner.h"
#include "runtime/device.h"
#include "vulkan/check.h"
#include "vulkan/instance.h"
#include "vulkan/pipeline.h"
#include "vulkan/spirv_demands.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kExchangeThreads = 64, kExchanges = 9;

std::vector<uint32_t> results(const vulkan::Pipeline& pipeline, const std::vector<uint32_t>& in) {
    const DeviceArray input(in), output(kExchangeThreads * kExchanges * sizeof(uint32_t));
    const struct { uint64_t output, input; } args{output.address(), input.address()};
    const runtime::Access accesses[] = {input.access(false), output.access(true)};
    runtime::encoder().dispatch(pipeline, &args, sizeof(args), {}, accesses);
    return output.download<uint32_t>();
}

TEST(SubgroupExchange, GivesWhatTheDeviceGives) {
    const uint32_t lanes = runtime::device_info().subgroup_size;
    const uint32_t specialization[] = {kExchangeThreads, lanes};
    const auto spirv = kernel_spirv(kernel_id("test_subgroup"));
    EXPECT_NE(vulkan::subgroup_features_of(spirv), VK_SUBGROUP_FEATURE_BASIC_BIT);
    const auto exchanged =
        vulkan::exchange_in_shared_memory(spirv, lanes, runtime::device_info().runs_on_cpu);
    EXPECT_EQ(vulkan::subgroup_features_of(exchanged), VK_SUBGROUP_FEATURE_BASIC_BIT);
    EXPECT_EQ(vulkan::shared_memory_of(exchanged, specialization),
              vulkan::shared_memory_of(spirv, specialization) + 4 * kExchangeThreads);

    std::vector<uint32_t> in(kExchangeThreads);
    std::generate(in.begin(), in.end(), std::mt19937(5));
    const vulkan::Pipeline portable(runtime::device(), "exchanged", exchanged, specialization);
    EXPECT_EQ(results(portable, in), results(pipeline(kernel_id("test_subgroup"), specialization), in));
}

TEST(SubgroupExchange, EveryKernelOfLanesHasItsForm) {
    constexpr VkSubgroupFeatureFlags kBasic = VK_SUBGROUP_FEATURE_BASIC_BIT;
    size_t rewritten = 0;
    for (const std::string& name : kernel_names()) {
        const auto spirv = kernel_spirv(kernel_id(name));
        // No device has matrix units without every operation of subgroups.
        if (vulkan::has_capability(spirv, vulkan::kCooperativeMatrixCapability)) continue;
        if ((vulkan::subgroup_features_of(spirv) & ~kBasic) == 0) continue;
        for (const uint32_t lanes : {4u, 32u, 64u, 128u}) {
            const auto exchanged = vulkan::exchange_in_shared_memory(spirv, lanes, false);
            EXPECT_EQ(vulkan::subgroup_features_of(exchanged), kBasic) << name;
        }
        ++rewritten;
    }
    EXPECT_GT(rewritten, 100u);
}

}  // namespace
}  // namespace anymps::kernels
