// A Vulkan layer that makes a software driver report another device and keep to its memory: heaps that fill
// up, memory that the host cannot map, buffers of at most so many bytes, queues of several families. Shaders
// run as the driver below runs them, all on its one queue; with ANYMPS_RUN_NOTHING no command runs at all.
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profile.h"

namespace anymps::device_layer {
namespace {

// Functions of the layer or driver below. One instance and one device at a time: what tests make.
struct Next {
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr = nullptr;
    PFN_vkGetPhysicalDeviceProperties GetPhysicalDeviceProperties = nullptr;
    PFN_vkGetPhysicalDeviceProperties2 GetPhysicalDeviceProperties2 = nullptr;
    PFN_vkGetPhysicalDeviceFeatures GetPhysicalDeviceFeatures = nullptr;
    PFN_vkGetPhysicalDeviceFeatures2 GetPhysicalDeviceFeatures2 = nullptr;
    PFN_vkEnumerateDeviceExtensionProperties EnumerateDeviceExtensionProperties = nullptr;
    PFN_vkCreateDevice CreateDevice = nullptr;

    PFN_vkGetDeviceProcAddr GetDeviceProcAddr = nullptr;
    PFN_vkCreateBuffer CreateBuffer = nullptr;
    PFN_vkGetBufferMemoryRequirements GetBufferMemoryRequirements = nullptr;
    PFN_vkAllocateMemory AllocateMemory = nullptr;
    PFN_vkFreeMemory FreeMemory = nullptr;
    PFN_vkMapMemory MapMemory = nullptr;
    PFN_vkDestroyDevice DestroyDevice = nullptr;
    PFN_vkGetDeviceQueue GetDeviceQueue = nullptr;
    PFN_vkCreateCommandPool CreateCommandPool = nullptr;
    PFN_vkQueueSubmit QueueSubmit = nullptr;

    // Once, when the instance has been made: the loader answers differently later.
    void load(VkInstance instance) {
        const auto get = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
                GetInstanceProcAddr(instance, name));
        };
        get(GetPhysicalDeviceProperties, "vkGetPhysicalDeviceProperties");
        get(GetPhysicalDeviceProperties2, "vkGetPhysicalDeviceProperties2");
        get(GetPhysicalDeviceFeatures, "vkGetPhysicalDeviceFeatures");
        get(GetPhysicalDeviceFeatures2, "vkGetPhysicalDeviceFeatures2");
        get(EnumerateDeviceExtensionProperties, "vkEnumerateDeviceExtensionProperties");
        get(CreateDevice, "vkCreateDevice");
    }
    void load(VkDevice device) {
        const auto get = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
                GetDeviceProcAddr(device, name));
        };
        get(CreateBuffer, "vkCreateBuffer");
        get(GetBufferMemoryRequirements, "vkGetBufferMemoryRequirements");
        get(AllocateMemory, "vkAllocateMemory");
        get(FreeMemory, "vkFreeMemory");
        get(MapMemory, "vkMapMemory");
        get(DestroyDevice, "vkDestroyDevice");
        get(GetDeviceQueue, "vkGetDeviceQueue");
        get(CreateCommandPool, "vkCreateCommandPool");
        get(QueueSubmit, "vkQueueSubmit");
    }
} next;

// Memory of the profile's heaps that is taken.
struct Allocation {
    uint32_t type;
    VkDeviceSize bytes;
};
std::mutex mutex;
std::unordered_map<VkDeviceMemory, Allocation> allocations;
std::array<VkDeviceSize, VK_MAX_MEMORY_HEAPS> used{};

// A queue of the profile. The loader and layers above tell a dispatchable object's device by its first word.
struct Queue {
    void* dispatch;
    VkQueue below;
};
std::map<std::pair<uint32_t, uint32_t>, Queue> queues;  // by family and index
std::mutex queue_mutex;                                 // for the one queue below

template <class Struct>
Struct* find(void* chain, VkStructureType type) {
    for (auto* item = static_cast<VkBaseOutStructure*>(chain); item; item = item->pNext) {
        if (item->sType == type) return reinterpret_cast<Struct*>(item);
    }
    return nullptr;
}

template <size_t N>
void copy_text(const char* name, char (&to)[N]) {
    if (const auto found = profile().texts.find(name); found != profile().texts.end()) {
        std::strncpy(to, found->second.c_str(), N - 1);
        to[N - 1] = '\0';
    }
}

void set_properties(VkPhysicalDeviceProperties& p) {
    const Profile& set = profile();
    copy_text("name", p.deviceName);
    set.set("vendorID", p.vendorID);
    set.set("deviceID", p.deviceID);
    set.set("apiVersion", p.apiVersion);
    set.set("driverVersion", p.driverVersion);
    set.set("deviceType", p.deviceType);
    set.set("maxPushConstantsSize", p.limits.maxPushConstantsSize);
    set.set("maxStorageBufferRange", p.limits.maxStorageBufferRange);
    set.set("maxMemoryAllocationCount", p.limits.maxMemoryAllocationCount);
    set.set("maxComputeSharedMemorySize", p.limits.maxComputeSharedMemorySize);
    set.set("maxComputeWorkGroupInvocations", p.limits.maxComputeWorkGroupInvocations);
    set.set("maxComputeWorkGroupSizeX", p.limits.maxComputeWorkGroupSize[0]);
    set.set("maxComputeWorkGroupCountX", p.limits.maxComputeWorkGroupCount[0]);
    set.set("nonCoherentAtomSize", p.limits.nonCoherentAtomSize);
    // Pipelines of another profile are none of this one's.
    for (size_t i = 0; p.deviceName[i] != '\0'; ++i) p.pipelineCacheUUID[i % VK_UUID_SIZE] ^= p.deviceName[i];
}

template <class Struct>
void set_driver(Struct* s) {
    if (s == nullptr) return;
    profile().set("driverID", s->driverID);
    copy_text("driver_name", s->driverName);
    copy_text("driver_info", s->driverInfo);
}

template <class Struct>
void set_subgroup_sizes(Struct* s) {
    if (s == nullptr) return;
    profile().set("minSubgroupSize", s->minSubgroupSize);
    profile().set("maxSubgroupSize", s->maxSubgroupSize);
}

void set_chained_properties(void* chain) {
    const Profile& set = profile();
    set_driver(
        find<VkPhysicalDeviceDriverProperties>(chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES));
    set_driver(find<VkPhysicalDeviceVulkan12Properties>(
        chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES));
    set_subgroup_sizes(find<VkPhysicalDeviceSubgroupSizeControlProperties>(
        chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES));
    auto* v13 = find<VkPhysicalDeviceVulkan13Properties>(
        chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES);
    set_subgroup_sizes(v13);
    if (v13) set.set("maxBufferSize", v13->maxBufferSize);
    if (auto* s = find<VkPhysicalDeviceMaintenance4Properties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES)) {
        set.set("maxBufferSize", s->maxBufferSize);
    }
    if (auto* s = find<VkPhysicalDeviceMaintenance3Properties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES)) {
        set.set("maxMemoryAllocationSize", s->maxMemoryAllocationSize);
    }
    if (auto* s = find<VkPhysicalDeviceSubgroupProperties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES)) {
        set.set("subgroupSize", s->subgroupSize);
    }
    if (auto* s = find<VkPhysicalDeviceVulkan11Properties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)) {
        set.set("subgroupSize", s->subgroupSize);
        set.set("maxMemoryAllocationSize", s->maxMemoryAllocationSize);
    }
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceProperties(VkPhysicalDevice device,
                                                       VkPhysicalDeviceProperties* p) {
    next.GetPhysicalDeviceProperties(device, p);
    set_properties(*p);
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceProperties2(VkPhysicalDevice device,
                                                        VkPhysicalDeviceProperties2* p) {
    next.GetPhysicalDeviceProperties2(device, p);
    set_properties(p->properties);
    set_chained_properties(p->pNext);
}

void set_features(VkPhysicalDeviceFeatures& f) {
    profile().keep("shaderInt64", f.shaderInt64);
    profile().keep("shaderInt16", f.shaderInt16);
    profile().keep("shaderFloat64", f.shaderFloat64);
}

template <class Struct>
void set_subgroup_control(Struct* s) {
    if (s == nullptr) return;
    profile().keep("subgroupSizeControl", s->subgroupSizeControl);
    profile().keep("computeFullSubgroups", s->computeFullSubgroups);
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceFeatures(VkPhysicalDevice device, VkPhysicalDeviceFeatures* f) {
    next.GetPhysicalDeviceFeatures(device, f);
    set_features(*f);
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceFeatures2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* f) {
    next.GetPhysicalDeviceFeatures2(device, f);
    const Profile& set = profile();
    set_features(f->features);
    if (auto* s = find<VkPhysicalDeviceVulkan11Features>(
            f->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)) {
        set.keep("storageBuffer16BitAccess", s->storageBuffer16BitAccess);
    }
    if (auto* s = find<VkPhysicalDeviceVulkan12Features>(
            f->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)) {
        set.keep("bufferDeviceAddress", s->bufferDeviceAddress);
        set.keep("timelineSemaphore", s->timelineSemaphore);
        set.keep("hostQueryReset", s->hostQueryReset);
        set.keep("storageBuffer8BitAccess", s->storageBuffer8BitAccess);
        set.keep("shaderInt8", s->shaderInt8);
        set.keep("shaderFloat16", s->shaderFloat16);
        set.keep("vulkanMemoryModel", s->vulkanMemoryModel);
        set.keep("vulkanMemoryModelDeviceScope", s->vulkanMemoryModelDeviceScope);
    }
    auto* v13 = find<VkPhysicalDeviceVulkan13Features>(f->pNext,
                                                       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES);
    if (v13) set.keep("maintenance4", v13->maintenance4);
    set_subgroup_control(v13);
    set_subgroup_control(find<VkPhysicalDeviceSubgroupSizeControlFeatures>(
        f->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES));
    if (auto* s = find<VkPhysicalDeviceMaintenance4Features>(
            f->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES)) {
        set.keep("maintenance4", s->maintenance4);
    }
    if (auto* s = find<VkPhysicalDeviceShaderAtomicFloatFeaturesEXT>(
            f->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT)) {
        set.keep("shaderBufferFloat32AtomicAdd", s->shaderBufferFloat32AtomicAdd);
    }
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceMemoryProperties(VkPhysicalDevice,
                                                             VkPhysicalDeviceMemoryProperties* p) {
    const Profile& from = profile();
    p->memoryHeapCount = static_cast<uint32_t>(from.heaps.size());
    p->memoryTypeCount = static_cast<uint32_t>(from.types.size());
    std::copy(from.heaps.begin(), from.heaps.end(), p->memoryHeaps);
    std::copy(from.types.begin(), from.types.end(), p->memoryTypes);
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice device,
                                                              VkPhysicalDeviceMemoryProperties2* p) {
    GetPhysicalDeviceMemoryProperties(device, &p->memoryProperties);
    if (auto* s = find<VkPhysicalDeviceMemoryBudgetPropertiesEXT>(
            p->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT)) {
        const std::lock_guard lock(mutex);
        std::fill_n(s->heapBudget, VK_MAX_MEMORY_HEAPS, 0);
        for (size_t i = 0; i < profile().heaps.size(); ++i)
            s->heapBudget[i] = profile().heaps[i].size / 10 * 9;
        std::copy(used.begin(), used.end(), s->heapUsage);
    }
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice, uint32_t* count,
                                                                  VkQueueFamilyProperties* list) {
    const auto& queues = profile().queues;
    if (list != nullptr) {
        *count = std::min(*count, static_cast<uint32_t>(queues.size()));
        std::copy_n(queues.begin(), *count, list);
    } else {
        *count = static_cast<uint32_t>(queues.size());
    }
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceQueueFamilyProperties2(VkPhysicalDevice, uint32_t* count,
                                                                   VkQueueFamilyProperties2* list) {
    const auto& queues = profile().queues;
    if (list != nullptr) {
        *count = std::min(*count, static_cast<uint32_t>(queues.size()));
        for (uint32_t i = 0; i < *count; ++i) list[i].queueFamilyProperties = queues[i];
    } else {
        *count = static_cast<uint32_t>(queues.size());
    }
}

VKAPI_ATTR VkResult VKAPI_CALL EnumerateDeviceExtensionProperties(VkPhysicalDevice device, const char* layer,
                                                                  uint32_t* count,
                                                                  VkExtensionProperties* list) {
    const auto ask = next.EnumerateDeviceExtensionProperties;
    if (layer != nullptr) {
        if (std::string_view(layer) != "VK_LAYER_ANYMPS_device") return ask(device, layer, count, list);
        *count = 0;
        return VK_SUCCESS;
    }
    uint32_t all = 0;
    VkResult result = ask(device, nullptr, &all, nullptr);
    std::vector<VkExtensionProperties> present(all);
    if (result == VK_SUCCESS) result = ask(device, nullptr, &all, present.data());
    if (result != VK_SUCCESS) return result;
    std::erase_if(present, [](const auto& e) { return profile().lacks.contains(e.extensionName); });
    if (list == nullptr) {
        *count = static_cast<uint32_t>(present.size());
        return VK_SUCCESS;
    }
    const uint32_t given = std::min(*count, static_cast<uint32_t>(present.size()));
    std::copy_n(present.begin(), given, list);
    *count = given;
    return given < present.size() ? VK_INCOMPLETE : VK_SUCCESS;
}

VKAPI_ATTR VkResult VKAPI_CALL CreateBuffer(VkDevice device, const VkBufferCreateInfo* create,
                                            const VkAllocationCallbacks* allocator, VkBuffer* buffer) {
    VkDeviceSize most = ~VkDeviceSize{0};
    profile().set("maxBufferSize", most);
    if (create->size > most) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return next.CreateBuffer(device, create, allocator, buffer);
}

// The driver below has one memory type; every buffer may be in any of the profile's.
VKAPI_ATTR void VKAPI_CALL GetBufferMemoryRequirements(VkDevice device, VkBuffer buffer,
                                                       VkMemoryRequirements* r) {
    next.GetBufferMemoryRequirements(device, buffer, r);
    r->memoryTypeBits = (1u << profile().types.size()) - 1;
}

VKAPI_ATTR VkResult VKAPI_CALL AllocateMemory(VkDevice device, const VkMemoryAllocateInfo* info,
                                              const VkAllocationCallbacks* allocator,
                                              VkDeviceMemory* memory) {
    const Profile& from = profile();
    const uint32_t type = info->memoryTypeIndex;
    const uint32_t heap = from.types.at(type).heapIndex;
    VkDeviceSize most = ~VkDeviceSize{0};
    from.set("maxMemoryAllocationSize", most);
    const std::lock_guard lock(mutex);
    if (info->allocationSize > most || used[heap] + info->allocationSize > from.heaps[heap].size)
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkMemoryAllocateInfo below = *info;
    below.memoryTypeIndex = 0;
    const auto allocate = next.AllocateMemory;
    const VkResult result = allocate(device, &below, allocator, memory);
    if (result == VK_SUCCESS) {
        allocations[*memory] = {type, info->allocationSize};
        used[heap] += info->allocationSize;
    }
    return result;
}

VKAPI_ATTR void VKAPI_CALL FreeMemory(VkDevice device, VkDeviceMemory memory,
                                      const VkAllocationCallbacks* allocator) {
    {
        const std::lock_guard lock(mutex);
        if (const auto found = allocations.find(memory); found != allocations.end()) {
            used[profile().types[found->second.type].heapIndex] -= found->second.bytes;
            allocations.erase(found);
        }
    }
    next.FreeMemory(device, memory, allocator);
}

VKAPI_ATTR VkResult VKAPI_CALL MapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
                                         VkDeviceSize size, VkMemoryMapFlags flags, void** host) {
    {
        const std::lock_guard lock(mutex);
        const auto found = allocations.find(memory);
        if (found != allocations.end() &&
            !(profile().types[found->second.type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)) {
            return VK_ERROR_MEMORY_MAP_FAILED;
        }
    }
    return next.MapMemory(device, memory, offset, size, flags, host);
}

VKAPI_ATTR void VKAPI_CALL GetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue* queue) {
    const std::lock_guard lock(queue_mutex);
    const auto [found, made] = queues.try_emplace({family, index});
    if (made) {
        next.GetDeviceQueue(device, 0, 0, &found->second.below);
        found->second.dispatch = *reinterpret_cast<void**>(device);
    }
    *queue = reinterpret_cast<VkQueue>(&found->second);
}

VKAPI_ATTR VkResult VKAPI_CALL CreateCommandPool(VkDevice device, const VkCommandPoolCreateInfo* create,
                                                 const VkAllocationCallbacks* allocator, VkCommandPool* pool) {
    VkCommandPoolCreateInfo info = *create;
    info.queueFamilyIndex = 0;
    return next.CreateCommandPool(device, &info, allocator, pool);
}

// Notes its count of command buffers as a line of the file that ANYMPS_SUBMISSIONS names.
VKAPI_ATTR VkResult VKAPI_CALL QueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo* submits,
                                           VkFence fence) {
    static const char* const name = std::getenv("ANYMPS_SUBMISSIONS");
    if (name != nullptr) {
        std::ofstream file(name, std::ios::app);
        for (uint32_t i = 0; i < count; ++i) file << submits[i].commandBufferCount << '\n';
    }
    // Semaphores are waited for and signalled as ever.
    static const bool runs_nothing = std::getenv("ANYMPS_RUN_NOTHING") != nullptr;
    std::vector<VkSubmitInfo> kept(submits, submits + count);
    if (runs_nothing) {
        for (VkSubmitInfo& submit : kept) submit.commandBufferCount = 0;
    }
    const std::lock_guard lock(queue_mutex);
    return next.QueueSubmit(reinterpret_cast<Queue*>(queue)->below, count, kept.data(), fence);
}

// Finds the link of the chain that says what is below, and moves it on for the layer that is called next.
template <class CreateInfo, class Layer>
Layer* link_of(const CreateInfo* create, VkStructureType type) {
    for (auto* item = const_cast<VkBaseOutStructure*>(static_cast<const VkBaseOutStructure*>(create->pNext));
         item; item = item->pNext) {
        auto* layer = reinterpret_cast<Layer*>(item);
        if (item->sType == type && layer->function == VK_LAYER_LINK_INFO) return layer;
    }
    return nullptr;
}

VKAPI_ATTR VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo* create,
                                              const VkAllocationCallbacks* allocator, VkInstance* instance) {
    auto* link = link_of<VkInstanceCreateInfo, VkLayerInstanceCreateInfo>(
        create, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (link == nullptr) return VK_ERROR_INITIALIZATION_FAILED;
    const auto proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    const auto make = reinterpret_cast<PFN_vkCreateInstance>(proc(VK_NULL_HANDLE, "vkCreateInstance"));
    const VkResult result = make(create, allocator, instance);
    if (result == VK_SUCCESS) {
        next.GetInstanceProcAddr = proc;
        next.load(*instance);
    }
    return result;
}

VKAPI_ATTR VkResult VKAPI_CALL CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo* create,
                                            const VkAllocationCallbacks* allocator, VkDevice* device) {
    auto* link = link_of<VkDeviceCreateInfo, VkLayerDeviceCreateInfo>(
        create, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (link == nullptr) return VK_ERROR_INITIALIZATION_FAILED;
    const auto device_proc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    for (uint32_t i = 0; i < create->queueCreateInfoCount; ++i) {
        const VkDeviceQueueCreateInfo& asked = create->pQueueCreateInfos[i];
        const auto& families = profile().queues;
        if (asked.queueFamilyIndex >= families.size() ||
            asked.queueCount > families[asked.queueFamilyIndex].queueCount)
            return VK_ERROR_INITIALIZATION_FAILED;
    }
    // The driver below has one queue.
    VkDeviceQueueCreateInfo one = create->pQueueCreateInfos[0];
    one.queueFamilyIndex = 0;
    one.queueCount = 1;
    VkDeviceCreateInfo below = *create;
    below.queueCreateInfoCount = 1;
    below.pQueueCreateInfos = &one;
    const VkResult result = next.CreateDevice(physical, &below, allocator, device);
    if (result == VK_SUCCESS) {
        next.GetDeviceProcAddr = device_proc;
        next.load(*device);
    }
    return result;
}

VKAPI_ATTR void VKAPI_CALL DestroyDevice(VkDevice device, const VkAllocationCallbacks* allocator) {
    {
        const std::lock_guard lock(queue_mutex);
        queues.clear();
    }
    next.DestroyDevice(device, allocator);
}

PFN_vkVoidFunction own(std::string_view name);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char* name) {
    if (const auto function = own(name)) return function;
    return next.GetDeviceProcAddr ? next.GetDeviceProcAddr(device, name) : nullptr;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance instance, const char* name) {
    if (const auto function = own(name)) return function;
    return next.GetInstanceProcAddr ? next.GetInstanceProcAddr(instance, name) : nullptr;
}

PFN_vkVoidFunction own(std::string_view name) {
    static const std::unordered_map<std::string_view, PFN_vkVoidFunction> functions = [] {
        std::unordered_map<std::string_view, PFN_vkVoidFunction> map;
        const auto add = [&](std::string_view key, auto* function) {
            map[key] = reinterpret_cast<PFN_vkVoidFunction>(function);
        };
        add("vkGetInstanceProcAddr", &GetInstanceProcAddr);
        add("vkGetDeviceProcAddr", &GetDeviceProcAddr);
        add("vkCreateInstance", &CreateInstance);
        add("vkCreateDevice", &CreateDevice);
        add("vkGetPhysicalDeviceProperties", &GetPhysicalDeviceProperties);
        add("vkGetPhysicalDeviceProperties2", &GetPhysicalDeviceProperties2);
        add("vkGetPhysicalDeviceProperties2KHR", &GetPhysicalDeviceProperties2);
        add("vkGetPhysicalDeviceFeatures", &GetPhysicalDeviceFeatures);
        add("vkGetPhysicalDeviceFeatures2", &GetPhysicalDeviceFeatures2);
        add("vkGetPhysicalDeviceFeatures2KHR", &GetPhysicalDeviceFeatures2);
        add("vkGetPhysicalDeviceMemoryProperties", &GetPhysicalDeviceMemoryProperties);
        add("vkGetPhysicalDeviceMemoryProperties2", &GetPhysicalDeviceMemoryProperties2);
        add("vkGetPhysicalDeviceMemoryProperties2KHR", &GetPhysicalDeviceMemoryProperties2);
        add("vkGetPhysicalDeviceQueueFamilyProperties", &GetPhysicalDeviceQueueFamilyProperties);
        add("vkGetPhysicalDeviceQueueFamilyProperties2", &GetPhysicalDeviceQueueFamilyProperties2);
        add("vkGetPhysicalDeviceQueueFamilyProperties2KHR", &GetPhysicalDeviceQueueFamilyProperties2);
        add("vkEnumerateDeviceExtensionProperties", &EnumerateDeviceExtensionProperties);
        add("vkCreateBuffer", &CreateBuffer);
        add("vkGetBufferMemoryRequirements", &GetBufferMemoryRequirements);
        add("vkAllocateMemory", &AllocateMemory);
        add("vkFreeMemory", &FreeMemory);
        add("vkMapMemory", &MapMemory);
        add("vkDestroyDevice", &DestroyDevice);
        add("vkGetDeviceQueue", &GetDeviceQueue);
        add("vkCreateCommandPool", &CreateCommandPool);
        add("vkQueueSubmit", &QueueSubmit);
        return map;
    }();
    const auto found = functions.find(name);
    return found == functions.end() ? nullptr : found->second;
}

}  // namespace
}  // namespace anymps::device_layer

extern "C" VK_LAYER_EXPORT VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface* negotiated) {
    using namespace anymps::device_layer;
    negotiated->loaderLayerInterfaceVersion = std::min(negotiated->loaderLayerInterfaceVersion, 2u);
    negotiated->pfnGetInstanceProcAddr = GetInstanceProcAddr;
    negotiated->pfnGetDeviceProcAddr = GetDeviceProcAddr;
    negotiated->pfnGetPhysicalDeviceProcAddr = nullptr;
    return VK_SUCCESS;
}
