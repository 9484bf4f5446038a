#include "vulkan/pipeline.h"

#include <array>
#include <vector>

#include "vulkan/check.h"
#include "vulkan/device.h"
#include "vulkan/spirv.h"

namespace anymps::vulkan {
namespace {
constexpr size_t kMaxSpecialization = 32;
}

Pipeline::Pipeline(const Device& device, const std::string& name, std::span<const uint32_t> spirv,
                   std::span<const uint32_t> specialization)
    : device_(device), name_(name) {
    if (specialization.size() > kMaxSpecialization) {
        throw Error(VK_ERROR_UNKNOWN, "Kernel " + name + " has " + std::to_string(specialization.size()) +
                                          " specialization constants; the limit is 32.");
    }
    const std::vector<uint32_t> words = module_for_device(spirv, device.info().float_controls);
    const auto& api = device.api();
    VkShaderModuleCreateInfo module_info{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
    module_info.codeSize = words.size() * sizeof(uint32_t);
    module_info.pCode = words.data();
    VkShaderModule module = VK_NULL_HANDLE;
    VK_CHECK(api.vkCreateShaderModule(device.handle(), &module_info, nullptr, &module));

    std::array<VkSpecializationMapEntry, kMaxSpecialization> entries;
    for (uint32_t i = 0; i < specialization.size(); ++i) entries[i] = {i, i * 4, 4};
    const VkSpecializationInfo values{static_cast<uint32_t>(specialization.size()), entries.data(),
                                      specialization.size_bytes(), specialization.data()};

    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{
        VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
    VkComputePipelineCreateInfo create{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    create.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    create.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    create.stage.module = module;
    create.stage.pName = "main";
    create.stage.pSpecializationInfo = &values;
    create.layout = device.pipeline_layout();
    const DeviceInfo& info = device.info();
    if (specialization.size() > 1 && specialization[1] != 0 && info.subgroup_size_control &&
        specialization[1] >= info.min_subgroup_size && specialization[1] <= info.max_subgroup_size) {
        subgroup.requiredSubgroupSize = specialization[1];
        create.stage.pNext = &subgroup;
        if (specialization[0] % specialization[1] == 0) {
            create.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
        }
    }
    const VkResult result =
        api.vkCreateComputePipelines(device.handle(), device.pipeline_cache(), 1, &create, nullptr, &handle_);
    api.vkDestroyShaderModule(device.handle(), module, nullptr);
    if (result < 0) {
        throw Error(result, "The driver of " + info.name + " could not compile kernel " + name + " (" +
                                result_name(result) + ").");
    }
    device.set_name(VK_OBJECT_TYPE_PIPELINE, reinterpret_cast<uint64_t>(handle_), name);
}

Pipeline::~Pipeline() {
    device_.api().vkDestroyPipeline(device_.handle(), handle_, nullptr);
}

}  // namespace anymps::vulkan
