#include "vulkan/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "vulkan/calibrated_time.h"
#include "vulkan/check.h"
#include "vulkan/extensions.h"

namespace anymps::vulkan {
namespace {

// What a device is created with: features that kernels need or that it has, and the extensions of those. The
// structs are chained to one another, so that it stays where it is.
class Demands {
  public:
    explicit Demands(const DeviceInfo& info) : v13_(info.api_version >= VK_API_VERSION_1_3) {
        require();
        allow(info);
    }
    Demands(const Demands&) = delete;
    Demands& operator=(const Demands&) = delete;

    const VkPhysicalDeviceFeatures2* features() const { return &features_; }
    std::vector<const char*> extensions;

  private:
    template <class T>
    void chain(T& item) {
        *tail_ = &item;
        tail_ = &item.pNext;
    }

    void require() {
        features_.features.shaderInt64 = VK_TRUE;
        features_.features.shaderInt16 = VK_TRUE;
        v11_.storageBuffer16BitAccess = VK_TRUE;
        v12_.bufferDeviceAddress = VK_TRUE;
        v12_.timelineSemaphore = VK_TRUE;
        v12_.hostQueryReset = VK_TRUE;
        v12_.storageBuffer8BitAccess = VK_TRUE;
        v12_.shaderInt8 = VK_TRUE;
        maintenance4_.maintenance4 = VK_TRUE;
        chain(v11_);
        chain(v12_);
        chain(maintenance4_);
        if (!v13_) extensions.push_back(VK_KHR_MAINTENANCE_4_EXTENSION_NAME);
    }

    void allow(const DeviceInfo& info) {
        v12_.shaderFloat16 = info.float16;
        v12_.vulkanMemoryModel = info.cooperative_matrix;
        v12_.vulkanMemoryModelDeviceScope = info.cooperative_matrix;
        if (info.subgroup_size_control) {
            control_.subgroupSizeControl = control_.computeFullSubgroups = VK_TRUE;
            chain(control_);
            if (!v13_) extensions.push_back(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
        }
        if (info.float32_atomic_add) {
            atomics_.shaderBufferFloat32AtomicAdd = VK_TRUE;
            chain(atomics_);
            extensions.push_back(VK_EXT_SHADER_ATOMIC_FLOAT_EXTENSION_NAME);
        }
        if (info.pipeline_statistics) {
            chain(statistics_);
            extensions.push_back(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
        }
        if (info.cooperative_matrix) {
            chain(matrix_);
            extensions.push_back(kCooperativeMatrixExtension);
        }
        if (info.cooperative_matrix_bfloat16) {
            chain(bfloat16_);
            extensions.push_back(kBfloat16Extension);
        }
        if (info.memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
        if (info.external_memory_host) extensions.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
        if (info.external_memory_fd) extensions.push_back(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
        if (info.dma_buf) extensions.push_back(VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME);
    }

    bool v13_;
    VkPhysicalDeviceFeatures2 features_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    void** tail_ = &features_.pNext;
    VkPhysicalDeviceVulkan11Features v11_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES};
    VkPhysicalDeviceVulkan12Features v12_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceMaintenance4Features maintenance4_{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES};
    VkPhysicalDeviceSubgroupSizeControlFeatures control_{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES};
    VkPhysicalDeviceShaderAtomicFloatFeaturesEXT atomics_{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT};
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics_{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR, nullptr, VK_TRUE};
    CooperativeMatrixFeatures matrix_{kTypeCooperativeMatrixFeatures, nullptr, VK_TRUE, VK_FALSE};
    Bfloat16Features bfloat16_{kTypeBfloat16Features, nullptr, VK_TRUE, VK_FALSE, VK_TRUE};
};

// One entry a family, with as many queues as are chosen of it; families: of the entries.
std::vector<VkDeviceQueueCreateInfo> queues_of(std::span<const QueueIndex> chosen,
                                               std::vector<uint32_t>& families) {
    static constexpr std::array<float, kLanes> kPriorities = {1.0f, 1.0f, 1.0f, 1.0f};
    std::vector<VkDeviceQueueCreateInfo> queues;
    for (const QueueIndex& wanted : chosen) {
        const auto known = std::ranges::find(families, wanted.family);
        const size_t i = known - families.begin();
        if (known == families.end()) {
            families.push_back(wanted.family);
            queues.push_back({VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO});
            queues[i].queueFamilyIndex = wanted.family;
            queues[i].pQueuePriorities = kPriorities.data();
        }
        queues[i].queueCount = std::max(queues[i].queueCount, wanted.index + 1);
    }
    return queues;
}

}  // namespace

Device::Device(const Instance& instance, const PhysicalDevice& physical)
    : physical_(physical.handle), info_(physical.info), debug_utils_(instance.debug_utils()) {
    const char* limit = std::getenv("ANYMPS_SIDE_QUEUES");
    chosen_ = choose_queues(queue_families(physical_), info_.queue_family,
                            info_.queues == 0 ? "one"
                            : limit           ? limit
                                              : "");
    const std::vector<VkDeviceQueueCreateInfo> queues = queues_of(chosen_, families_);
    Demands demands(info_);
    std::vector<const char*>& extensions = demands.extensions;
    if (const char* name = calibrated_timestamps_extension(instance.handle(), physical_))
        extensions.push_back(name);

    VkDeviceCreateInfo create{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, demands.features()};
    create.queueCreateInfoCount = static_cast<uint32_t>(queues.size());
    create.pQueueCreateInfos = queues.data();
    create.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    create.ppEnabledExtensionNames = extensions.data();
    VK_CHECK(vkCreateDevice(physical_, &create, nullptr, &handle_));
    volkLoadDeviceTable(&api_, handle_);
    for (size_t i = 0; i < kLanes; ++i)
        api_.vkGetDeviceQueue(handle_, chosen_[i].family, chosen_[i].index, &queues_[i]);
    for (MemoryKind kind : {MemoryKind::Device, MemoryKind::Ring, MemoryKind::Staging})
        memory_types_[static_cast<size_t>(kind)] = choose_memory_types(kind);

    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushConstantBytes};
    VkPipelineLayoutCreateInfo layout{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &range;
    VK_CHECK(api_.vkCreatePipelineLayout(handle_, &layout, nullptr, &layout_));
    VkPipelineCacheCreateInfo cache{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    VK_CHECK(api_.vkCreatePipelineCache(handle_, &cache, nullptr, &cache_));
}

Device::~Device() {
    if (handle_ == VK_NULL_HANDLE) return;
    api_.vkDeviceWaitIdle(handle_);
    api_.vkDestroyPipelineCache(handle_, cache_, nullptr);
    api_.vkDestroyPipelineLayout(handle_, layout_, nullptr);
    api_.vkDestroyDevice(handle_, nullptr);
}

std::vector<uint32_t> Device::choose_memory_types(MemoryKind kind) const {
    constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    constexpr VkMemoryPropertyFlags kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
    constexpr VkMemoryPropertyFlags kMapped = kVisible | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    constexpr VkMemoryPropertyFlags kCached = kMapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    constexpr VkMemoryPropertyFlags kNever = VK_MEMORY_PROPERTY_PROTECTED_BIT |
                                             VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
                                             VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD;
    std::vector<uint32_t> chosen;
    const auto add = [&](VkMemoryPropertyFlags wanted, VkMemoryPropertyFlags unwanted) {
        for (uint32_t i = 0; i < info_.memory_types.size(); ++i) {
            const auto [heap, properties] = info_.memory_types[i];
            const bool fits = (properties & wanted) == wanted && !(properties & (unwanted | kNever));
            const bool there = std::any_of(chosen.begin(), chosen.end(), [&](uint32_t other) {
                return info_.memory_types[other].heap == heap;
            });
            if (fits && !there) chosen.push_back(i);
        }
    };
    switch (kind) {
        case MemoryKind::Device:
            if (info_.unified_memory) add(kLocal | kCached, 0);
            add(kLocal, kVisible);
            add(kLocal, 0);
            if (info_.in_system_memory()) {
                add(kCached, 0);
                add(kMapped, 0);
            }
            break;
        case MemoryKind::Ring:
            add(kLocal | kMapped, 0);
            add(kMapped, 0);
            break;
        case MemoryKind::Staging:
            add(kCached, info_.unified_memory ? 0 : kLocal);
            add(kCached, 0);
            add(kMapped, 0);
            break;
    }
    return chosen;  // of null devices, which only compile, none: Buffer raises
}

bool Device::mapped(MemoryKind kind, uint32_t memory_type) const {
    if (kind != MemoryKind::Device) return true;
    // What the host does not cache it reads too slowly: copies go through staging memory there.
    constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                              VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                                              VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    return info_.in_system_memory() && (info_.memory_types[memory_type].properties & kCached) == kCached;
}

uint32_t Device::host_memory_type(uint32_t types) const {
    constexpr VkMemoryPropertyFlags kMapped =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (const VkMemoryPropertyFlags wanted : {kMapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, kMapped}) {
        for (uint32_t i = 0; i < info_.memory_types.size(); ++i) {
            if ((types >> i & 1) && (info_.memory_types[i].properties & wanted) == wanted) return i;
        }
    }
    throw Error(VK_ERROR_FEATURE_NOT_PRESENT, info_.name + " has no memory type for memory of the host.");
}

void Device::submit(Lane lane, std::span<const VkCommandBuffer> commands,
                    std::span<const SemaphoreValue> after, std::span<const SemaphoreValue> signals) const {
    std::vector<VkSemaphore> semaphores;
    std::vector<uint64_t> values;
    for (const auto part : {after, signals}) {
        for (const SemaphoreValue& each : part) {
            semaphores.push_back(each.semaphore);
            values.push_back(each.value);
        }
    }
    const std::vector<VkPipelineStageFlags> stages(after.size(), VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    VkTimelineSemaphoreSubmitInfo timeline{VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    timeline.waitSemaphoreValueCount = static_cast<uint32_t>(after.size());
    timeline.pWaitSemaphoreValues = values.data();
    timeline.signalSemaphoreValueCount = static_cast<uint32_t>(signals.size());
    timeline.pSignalSemaphoreValues = values.data() + after.size();
    VkSubmitInfo info{VK_STRUCTURE_TYPE_SUBMIT_INFO, &timeline};
    info.waitSemaphoreCount = timeline.waitSemaphoreValueCount;
    info.pWaitSemaphores = semaphores.data();
    info.pWaitDstStageMask = stages.data();
    info.commandBufferCount = static_cast<uint32_t>(commands.size());
    info.pCommandBuffers = commands.data();
    info.signalSemaphoreCount = timeline.signalSemaphoreValueCount;
    info.pSignalSemaphores = semaphores.data() + after.size();
    const size_t first = std::ranges::find(queues_, queue(lane)) - queues_;
    const std::lock_guard lock(queue_mutexes_[first]);
    VK_CHECK(api_.vkQueueSubmit(queue(lane), 1, &info, VK_NULL_HANDLE));
}

uint64_t Device::device_memory() const {
    uint64_t bytes = 0;
    for (uint32_t type : memory_types(MemoryKind::Device))
        bytes += info_.heaps[info_.memory_types[type].heap].bytes;
    return bytes;
}

uint64_t Device::free_memory() const {
    if (!info_.memory_budget) return device_memory();
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
                                                 &budget};
    vkGetPhysicalDeviceMemoryProperties2(physical_, &properties);
    uint64_t bytes = 0;
    for (uint32_t type : memory_types(MemoryKind::Device)) {
        const uint32_t heap = info_.memory_types[type].heap;
        bytes += budget.heapBudget[heap] - std::min(budget.heapBudget[heap], budget.heapUsage[heap]);
    }
    return bytes;
}

std::string Device::cache_file(const std::string& folder) const {
    // The UUID changes with driver and device; the version is there because some drivers forget to change it.
    static const char* kHex = "0123456789abcdef";
    std::string name = folder + "/pipelines-";
    for (uint8_t byte : info_.pipeline_cache_uuid) {
        name += kHex[byte >> 4];
        name += kHex[byte & 15];
    }
    return name + "-" + std::to_string(info_.driver_version) + ".bin";
}

void Device::load_pipeline_cache(const std::string& folder) {
    std::ifstream file(cache_file(folder), std::ios::binary);
    const std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (data.empty()) return;
    VkPipelineCacheCreateInfo create{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    create.initialDataSize = data.size();
    create.pInitialData = data.data();
    VkPipelineCache loaded = VK_NULL_HANDLE;
    if (api_.vkCreatePipelineCache(handle_, &create, nullptr, &loaded) != VK_SUCCESS) return;
    api_.vkDestroyPipelineCache(handle_, cache_, nullptr);
    cache_ = loaded;
}

void Device::save_pipeline_cache(const std::string& folder) const {
    size_t bytes = 0;
    if (api_.vkGetPipelineCacheData(handle_, cache_, &bytes, nullptr) != VK_SUCCESS || bytes == 0) return;
    std::vector<char> data(bytes);
    if (api_.vkGetPipelineCacheData(handle_, cache_, &bytes, data.data()) != VK_SUCCESS) return;
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    const std::string name = cache_file(folder);
    const std::string temporary = name + "." + std::to_string(getpid());
    {
        std::ofstream file(temporary, std::ios::binary);
        if (!file.write(data.data(), static_cast<std::streamsize>(bytes))) return;
    }
    std::filesystem::rename(temporary, name, ignored);
}

void Device::set_name(VkObjectType type, uint64_t handle, const std::string& name) const {
    if (!debug_utils_ || vkSetDebugUtilsObjectNameEXT == nullptr) return;
    VkDebugUtilsObjectNameInfoEXT info{VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT};
    info.objectType = type;
    info.objectHandle = handle;
    info.pObjectName = name.c_str();
    vkSetDebugUtilsObjectNameEXT(handle_, &info);
}

}  // namespace anymps::vulkan
