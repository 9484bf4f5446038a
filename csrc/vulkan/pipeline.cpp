#include "vulkan/pipeline.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "vulkan/check.h"
#include "vulkan/device.h"
#include "vulkan/spirv.h"
#include "vulkan/spirv_demands.h"
#include "vulkan/spirv_loops.h"
#include "vulkan/spirv_specialize.h"
#include "vulkan/subgroup_exchange.h"

namespace anymps::vulkan {
namespace {
constexpr size_t kMaxSpecialization = 32;
constexpr uint32_t kSoftwareConstant = 32;  // as in shaders/lib/software.slang
constexpr uint32_t kFusedConstant = 33;     // as in shaders/lib/math_core.slang

// Drivers spend most of a compilation on code that specialization constants leave out. NVIDIA's compiler
// schedules loops over matrices by what it sees before it knows the constants: with all of them a 1 x 1
// convolution in halves took 1.14 times as long on an H100. So GPUs are left those that such loops see.
std::vector<uint32_t> specialized(const DeviceInfo& info, std::span<const uint32_t> words,
                                  std::span<const uint32_t> specialization) {
    std::vector<uint32_t> kept;
    if (!info.is_software && has_capability(words, kCooperativeMatrixCapability))
        kept = constants_of_matrix_loops(words);
    std::vector<std::pair<uint32_t, uint32_t>> values{{kSoftwareConstant, info.is_software},
                                                      {kFusedConstant, info.fused_multiply_add}};
    for (uint32_t i = 0; i < specialization.size(); ++i) values.emplace_back(i, specialization[i]);
    return specialize(words, values, /*compact=*/info.is_software, kept);
}

// The subgroup size that a pipeline must ask for, or 0: what specialization constant 1 says. Where the driver
// has a choice, kernels that work in subgroups and leave it out count on the device's own, and others take
// what is best for them.
uint32_t required_subgroup_size(const DeviceInfo& info, std::span<const uint32_t> spirv,
                                std::span<const uint32_t> specialization) {
    if (!info.subgroup_size_control) return 0;
    uint32_t size = specialization.size() > 1 ? specialization[1] : 0;
    if (info.min_subgroup_size != info.max_subgroup_size) {
        if (!works_in_subgroups(spirv)) return 0;
        if (size == 0) size = info.subgroup_size;
    }
    return size >= info.min_subgroup_size && size <= info.max_subgroup_size ? size : 0;
}

}  // namespace

std::vector<uint32_t> module_for(const DeviceInfo& info, std::span<const uint32_t> spirv, uint32_t lanes) {
    std::vector<uint32_t> words = module_for_device(spirv, info.float_controls);
    if (!info.float16) keep_halves_in_memory(words);
    if ((subgroup_features_of(words) & ~info.subgroup_features) != 0) {
        // llvmpipe's lanes are those of a vector; it ends a workgroup in which one subgroup meets fewer
        // control barriers than another, though they are of the subgroup.
        words = exchange_in_shared_memory(words, lanes, info.runs_on_cpu);
    }
    return words;
}

Pipeline::Pipeline(const Device& device, const std::string& name, std::span<const uint32_t> spirv,
                   std::span<const uint32_t> specialization)
    : device_(device), name_(name) {
    if (specialization.size() > kMaxSpecialization) {
        throw Error(VK_ERROR_UNKNOWN, "Kernel " + name + " has " + std::to_string(specialization.size()) +
                                          " specialization constants; the limit is 32.");
    }
    const DeviceInfo& info = device.info();
    const uint32_t lanes = required_subgroup_size(info, spirv, specialization);
    std::vector<uint32_t> words = module_for(info, spirv, lanes != 0 ? lanes : info.subgroup_size);
    // What is left on software drivers may take less shared memory.
    if (info.is_software) words = specialized(info, words, specialization);
    if (const uint32_t shared = shared_memory_of(words, specialization); shared > info.shared_memory_bytes) {
        throw Error(VK_ERROR_FEATURE_NOT_PRESENT, "Kernel " + name + " takes " + std::to_string(shared) +
                                                      " bytes of shared memory; " + info.name + " has " +
                                                      std::to_string(info.shared_memory_bytes) + ".");
    }
    if (!info.float16 && has_capability(words, kFloat16Capability)) {
        throw Error(VK_ERROR_FEATURE_NOT_PRESENT,
                    "Kernel " + name + " takes arithmetic in halves; " + info.name + " has none.");
    }
    source_ = {std::move(words), {specialization.begin(), specialization.end()}, lanes};
}

VkResult Pipeline::compile() const {
    const DeviceInfo& info = device_.info();
    const auto& api = device_.api();
    std::vector<uint32_t> words = std::move(source_.words);
    if (!info.is_software) words = specialized(info, words, source_.specialization);
    VkShaderModuleCreateInfo module_info{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
    module_info.codeSize = words.size() * sizeof(uint32_t);
    module_info.pCode = words.data();
    VkShaderModule module = VK_NULL_HANDLE;
    if (const VkResult result = api.vkCreateShaderModule(device_.handle(), &module_info, nullptr, &module);
        result < 0) {
        return result;
    }

    std::array<VkSpecializationMapEntry, kMaxSpecialization + 1> entries;
    std::array<uint32_t, kMaxSpecialization + 1> constants;
    const auto count = static_cast<uint32_t>(source_.specialization.size());
    std::copy(source_.specialization.begin(), source_.specialization.end(), constants.begin());
    constants[count] = info.fused_multiply_add;
    for (uint32_t i = 0; i <= count; ++i) entries[i] = {i < count ? i : kFusedConstant, i * 4, 4};
    const VkSpecializationInfo values{count + 1, entries.data(), (count + 1) * 4, constants.data()};

    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{
        VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
    VkComputePipelineCreateInfo create{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    create.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    create.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    create.stage.module = module;
    create.stage.pName = "main";
    create.stage.pSpecializationInfo = &values;
    create.layout = device_.pipeline_layout();
    if (info.pipeline_statistics) create.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
    if (info.splits_dispatches()) create.flags |= VK_PIPELINE_CREATE_DISPATCH_BASE_BIT;
    if (const uint32_t lanes = source_.subgroup_size; lanes != 0) {
        subgroup.requiredSubgroupSize = lanes;
        create.stage.pNext = &subgroup;
        if (count > 0 && source_.specialization[0] % lanes == 0) {
            create.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
        }
    }
    const VkResult result = api.vkCreateComputePipelines(device_.handle(), device_.pipeline_cache(), 1,
                                                         &create, nullptr, &handle_);
    api.vkDestroyShaderModule(device_.handle(), module, nullptr);
    return result;
}

void Pipeline::build() const {
    std::call_once(once_, [this] {
        result_ = compile();
        source_ = {};
        if (result_ >= 0) {
            device_.set_name(VK_OBJECT_TYPE_PIPELINE, reinterpret_cast<uint64_t>(handle_), name_);
        }
        built_.store(true, std::memory_order_release);
    });
}

VkPipeline Pipeline::handle() const {
    if (!built()) build();
    if (result_ < 0) {
        throw Error(result_, "The driver of " + device_.info().name + " could not compile kernel " + name_ +
                                 " (" + result_name(result_) + ").");
    }
    return handle_;
}

std::vector<std::pair<std::string, double>> Pipeline::statistics() const {
    std::vector<std::pair<std::string, double>> result;
    VkPipelineExecutableInfoKHR executable{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR};
    executable.pipeline = handle();  // a compute pipeline is one executable, number 0
    if (!device_.info().pipeline_statistics) return result;
    uint32_t count = 0;
    const auto& api = device_.api();
    VK_CHECK(api.vkGetPipelineExecutableStatisticsKHR(device_.handle(), &executable, &count, nullptr));
    std::vector<VkPipelineExecutableStatisticKHR> list(
        count, VkPipelineExecutableStatisticKHR{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR});
    VK_CHECK(api.vkGetPipelineExecutableStatisticsKHR(device_.handle(), &executable, &count, list.data()));
    for (const auto& s : list) {
        double value = 0;
        switch (s.format) {
            case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
                value = s.value.b32;
                break;
            case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
                value = static_cast<double>(s.value.i64);
                break;
            case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
                value = static_cast<double>(s.value.u64);
                break;
            default:
                value = s.value.f64;
        }
        result.emplace_back(s.name, value);
    }
    return result;
}

Pipeline::~Pipeline() {
    device_.api().vkDestroyPipeline(device_.handle(), handle_, nullptr);
}

}  // namespace anymps::vulkan
