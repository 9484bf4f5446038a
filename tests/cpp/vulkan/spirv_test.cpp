#include "vulkan/spirv.h"

#include <gtest/gtest.h>

#include "vulkan/check.h"
#include "vulkan/spirv_demands.h"

namespace anymps::vulkan {
namespace {

using Words = std::vector<uint32_t>;

constexpr uint32_t op(uint32_t opcode, uint32_t words) {
    return words << 16 | opcode;
}

Words join(std::initializer_list<Words> parts) {
    Words all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

const Words kHeader{0x07230203, 0x00010500, 0, 10, 0};
const Words kShader{op(17, 2), 1};
const Words kEntry{op(15, 5), 5, 2, 0x6e69616d, 0};  // OpEntryPoint GLCompute %2 "main"
const Words kRest{op(16, 6), 2, 17, 8, 1, 1, op(43, 4), 6, 7, 8};

TEST(Spirv, FloatControlsFollowTheEntryPoint) {
    const Words nan_capability{op(17, 2), 4466}, nan_mode{op(16, 4), 2, 4461, 32};
    const Words denorm_capability{op(17, 2), 4464}, denorm_mode{op(16, 4), 2, 4459, 32};
    const Words module = join({kHeader, kShader, kEntry, kRest});
    EXPECT_EQ(module_for_device(module, {true, true}), join({kHeader, nan_capability, denorm_capability,
                                                             kShader, kEntry, nan_mode, denorm_mode, kRest}));
    EXPECT_EQ(module_for_device(module, {true, false}),
              join({kHeader, nan_capability, kShader, kEntry, nan_mode, kRest}));
    EXPECT_EQ(module_for_device(module, {}), module);
}

TEST(Spirv, HalvesMayBeForMemoryOnly) {
    Words module = join({kHeader, {op(17, 2), 9}, kShader, kEntry, kRest});
    keep_halves_in_memory(module);
    EXPECT_EQ(module, join({kHeader, {op(17, 2), 4433}, kShader, kEntry, kRest}));
    EXPECT_FALSE(has_capability(module, kFloat16Capability));
}

TEST(Spirv, HalvesWhoseBitsAreTakenAreMoreThanMemory) {
    const Words types{op(21, 4), 10, 16, 0, op(22, 3), 11, 16, op(22, 3), 12, 32};  // ushort, half, float
    const Words converted{op(115, 4), 11, 21, 20};  // %21 = OpFConvert %half %20
    const Words bits{op(124, 4), 10, 22, 21}, half{op(124, 4), 11, 24, 23}, other{op(124, 4), 10, 26, 25};
    for (const auto& [bitcast, reinterprets] : {std::pair{bits, true}, {half, true}, {other, false}}) {
        const Words before =
            join({kHeader, {op(17, 2), 9}, kShader, kEntry, kRest, types, converted, bitcast});
        Words module = before;
        keep_halves_in_memory(module);
        EXPECT_EQ(has_capability(module, kFloat16Capability), reinterprets);
        EXPECT_EQ(module == before, reinterprets);
    }
}

TEST(Spirv, SharedMemoryIsCounted) {
    // uint, float4, float4[5] in workgroup memory; a pointer to other memory does not count.
    const Words types{op(21, 4), 10, 32, 0,         op(22, 3), 11, 32, op(23, 4), 12, 11, 4,  op(43, 4),
                      10,        13, 5,  op(28, 4), 14,        12, 13, op(32, 4), 15, 4,  14, op(59, 4),
                      15,        16, 4,  op(32, 4), 17,        6,  14, op(59, 4), 17, 18, 6};
    EXPECT_EQ(shared_memory_of(join({kHeader, kShader, kEntry, types})), 80u);
    EXPECT_EQ(shared_memory_of(join({kHeader, kShader, kEntry})), 0u);
}

TEST(Spirv, SharedMemoryMayDependOnASpecializationConstant) {
    // uint[n], where n is constant 1, which is 5 unless it is given.
    const Words types{op(71, 4), 13, 1,  1,  op(21, 4), 10, 32, 0,  op(50, 4), 10, 13, 5,
                      op(28, 4), 14, 10, 13, op(32, 4), 15, 4,  14, op(59, 4), 15, 16, 4};
    const Words module = join({kHeader, kShader, kEntry, types});
    EXPECT_EQ(shared_memory_of(module), 20u);
    EXPECT_EQ(shared_memory_of(module, Words{64}), 20u);
    EXPECT_EQ(shared_memory_of(module, Words{64, 7}), 28u);
}

TEST(Spirv, SubgroupOperationsAreThoseOfTheCapabilities) {
    EXPECT_EQ(subgroup_features_of(join({kHeader, kShader, kEntry, kRest})), 0u);
    const Words capabilities{op(17, 2), 61, op(17, 2), 65, op(17, 2), 64};
    EXPECT_EQ(subgroup_features_of(join({kHeader, kShader, capabilities, kEntry, kRest})),
              VkSubgroupFeatureFlags{VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT |
                                     VK_SUBGROUP_FEATURE_BALLOT_BIT});
}

TEST(Spirv, ModulesThatWorkInSubgroupsAreKnown) {
    EXPECT_FALSE(works_in_subgroups(join({kHeader, kShader, kEntry, kRest})));
    EXPECT_TRUE(works_in_subgroups(join({kHeader, kShader, {op(17, 2), 61}, kEntry, kRest})));
    EXPECT_TRUE(works_in_subgroups(
        join({kHeader, kShader, {op(17, 2), kCooperativeMatrixCapability}, kEntry, kRest})));
}

TEST(Spirv, ADamagedModuleIsAnError) {
    EXPECT_THROW(module_for_device(Words{1, 2}, {}), Error);
    EXPECT_THROW(module_for_device(join({kHeader, {op(17, 9), 1}}), {}), std::runtime_error);
    EXPECT_THROW(shared_memory_of(join({kHeader, {0}})), std::runtime_error);
}

}  // namespace
}  // namespace anymps::vulkan
