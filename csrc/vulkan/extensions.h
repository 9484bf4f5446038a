// Extensions that the headers of stable distributions predate: their structs, by the specification.
#pragma once

#include <cstdint>

#include "vulkan/api.h"

namespace anymps::vulkan {

constexpr const char* kCooperativeMatrixExtension = "VK_KHR_cooperative_matrix";
constexpr const char* kBfloat16Extension = "VK_KHR_shader_bfloat16";
constexpr auto kTypeCooperativeMatrixFeatures = static_cast<VkStructureType>(1000506000);
constexpr auto kTypeBfloat16Features = static_cast<VkStructureType>(1000141000);
struct CooperativeMatrixFeatures {
    VkStructureType sType;
    void* pNext;
    VkBool32 cooperativeMatrix;
    VkBool32 cooperativeMatrixRobustBufferAccess;
};
struct Bfloat16Features {
    VkStructureType sType;
    void* pNext;
    VkBool32 shaderBFloat16Type;
    VkBool32 shaderBFloat16DotProduct;
    VkBool32 shaderBFloat16CooperativeMatrix;
};
constexpr auto kTypeCooperativeMatrixProperties = static_cast<VkStructureType>(1000506001);
constexpr int32_t kComponentFloat16 = 0, kComponentFloat32 = 1, kComponentBfloat16 = 1000141000;
constexpr int32_t kScopeSubgroup = 3;
struct CooperativeMatrixProperties {
    VkStructureType sType;
    void* pNext;
    uint32_t MSize, NSize, KSize;
    int32_t AType, BType, CType, ResultType;
    VkBool32 saturatingAccumulation;
    int32_t scope;
};
using GetCooperativeMatrixProperties = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*,
                                                            CooperativeMatrixProperties*);

}  // namespace anymps::vulkan
