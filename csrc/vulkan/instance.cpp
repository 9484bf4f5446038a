#include "vulkan/instance.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "vulkan/check.h"
#include "vulkan/extensions.h"
#include "vulkan/queues.h"

namespace anymps::vulkan {
namespace {

bool contains(const std::vector<VkExtensionProperties>& list, const char* name) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& e) { return std::strcmp(e.extensionName, name) == 0; });
}

std::vector<VkExtensionProperties> device_extensions(VkPhysicalDevice device) {
    uint32_t count = 0;
    VK_CHECK(vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr));
    std::vector<VkExtensionProperties> list(count);
    VK_CHECK(vkEnumerateDeviceExtensionProperties(device, nullptr, &count, list.data()));
    return list;
}

template <class T>
T chained(VkStructureType type, void* next = nullptr) {
    T value{};
    value.sType = type;
    value.pNext = next;
    return value;
}

void read_properties(VkPhysicalDevice handle, DeviceInfo& info) {
    auto float_controls = chained<VkPhysicalDeviceFloatControlsProperties>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES);
    auto maintenance4 = chained<VkPhysicalDeviceMaintenance4Properties>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES, &float_controls);
    auto maintenance3 = chained<VkPhysicalDeviceMaintenance3Properties>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, &maintenance4);
    auto control = chained<VkPhysicalDeviceSubgroupSizeControlProperties>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES, &maintenance3);
    auto subgroup = chained<VkPhysicalDeviceSubgroupProperties>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, &control);
    auto id =
        chained<VkPhysicalDeviceIDProperties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, &subgroup);
    auto driver =
        chained<VkPhysicalDeviceDriverProperties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, &id);
    auto properties =
        chained<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &driver);
    vkGetPhysicalDeviceProperties2(handle, &properties);

    const VkPhysicalDeviceProperties& p = properties.properties;
    info.name = p.deviceName;
    info.driver_name = driver.driverName;
    info.driver_info = driver.driverInfo;
    // Vulkan promises nothing about fma(): true where tests/ops/pointwise/test_math.py has been run with it.
    info.fused_multiply_add = driver.driverID == VK_DRIVER_ID_NVIDIA_PROPRIETARY;
    info.vendor_id = p.vendorID;
    info.device_id = p.deviceID;
    info.api_version = p.apiVersion;
    info.driver_version = p.driverVersion;
    std::copy_n(p.pipelineCacheUUID, VK_UUID_SIZE, info.pipeline_cache_uuid.begin());
    std::copy_n(id.deviceUUID, VK_UUID_SIZE, info.external_uuid.begin());
    std::copy_n(id.driverUUID, VK_UUID_SIZE, info.external_uuid.begin() + VK_UUID_SIZE);
    info.is_software = info.runs_on_cpu = p.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    info.is_integrated = p.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    info.subgroup_features = subgroup.supportedOperations;
    info.subgroup_size = subgroup.subgroupSize;
    info.min_subgroup_size = control.minSubgroupSize ? control.minSubgroupSize : subgroup.subgroupSize;
    info.max_subgroup_size = control.maxSubgroupSize ? control.maxSubgroupSize : subgroup.subgroupSize;
    info.max_workgroup_size =
        std::min(p.limits.maxComputeWorkGroupInvocations, p.limits.maxComputeWorkGroupSize[0]);
    info.shared_memory_bytes = p.limits.maxComputeSharedMemorySize;
    info.push_constant_bytes = p.limits.maxPushConstantsSize;
    info.timestamp_period_ns = p.limits.timestampPeriod;
    info.max_allocation_bytes = maintenance3.maxMemoryAllocationSize;
    info.max_buffer_bytes = maintenance4.maxBufferSize;
    info.float_controls.preserve_nan = float_controls.shaderSignedZeroInfNanPreserveFloat32;
    // Where all widths must agree, setting one would be invalid.
    info.float_controls.preserve_denormals =
        float_controls.shaderDenormPreserveFloat32 &&
        float_controls.denormBehaviorIndependence != VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE;
}

void read_memory(VkPhysicalDevice handle, DeviceInfo& info) {
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(handle, &memory);
    for (uint32_t i = 0; i < memory.memoryHeapCount; ++i) {
        info.heaps.push_back({memory.memoryHeaps[i].size,
                              (memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0});
    }
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i)
        info.memory_types.push_back({memory.memoryTypes[i].heapIndex, memory.memoryTypes[i].propertyFlags});
    constexpr VkMemoryPropertyFlags kUnified =
        VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
        VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    // A discrete card may offer such a type too, in a small window or in system memory: never there.
    for (uint32_t i = 0; i < memory.memoryTypeCount && (info.is_software || info.is_integrated); ++i) {
        info.unified_memory |= (memory.memoryTypes[i].propertyFlags & kUnified) == kUnified;
    }
}

bool read_queue_family(VkPhysicalDevice handle, DeviceInfo& info) {
    const auto families = queue_families(handle);
    // A family with graphics is the full-speed one on every known driver; compute alone is the second choice.
    for (VkQueueFlags wanted : {VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT, VK_QUEUE_COMPUTE_BIT + 0}) {
        for (uint32_t i = 0; i < families.size(); ++i) {
            if ((families[i].queueFlags & wanted) == static_cast<VkQueueFlags>(wanted)) {
                info.queue_family = i;
                info.timestamp_valid_bits = families[i].timestampValidBits;
                return true;
            }
        }
    }
    return false;
}

// Multiprocessors, compute units or cores; only vendors' extensions tell.
uint32_t read_compute_units(VkPhysicalDevice handle, const std::vector<VkExtensionProperties>& extensions) {
    auto nvidia = chained<VkPhysicalDeviceShaderSMBuiltinsPropertiesNV>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV);
    auto amd = chained<VkPhysicalDeviceShaderCoreProperties2AMD>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD);
    auto arm = chained<VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM);
    auto properties = chained<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2);
    void** tail = &properties.pNext;
    const auto append = [&](auto& s) {
        *tail = &s;
        tail = &s.pNext;
    };
    if (contains(extensions, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) append(nvidia);
    if (contains(extensions, VK_AMD_SHADER_CORE_PROPERTIES_2_EXTENSION_NAME)) append(amd);
    if (contains(extensions, VK_ARM_SHADER_CORE_BUILTINS_EXTENSION_NAME)) append(arm);
    vkGetPhysicalDeviceProperties2(handle, &properties);
    return nvidia.shaderSMCount + amd.activeComputeUnitCount + arm.shaderCoreCount;  // at most one is not 0
}

// Matrices of 16 x 16 x 16 a subgroup: the kernels know no other shape.
void read_cooperative_matrices(VkInstance instance, VkPhysicalDevice handle, DeviceInfo& info) {
    const auto get = reinterpret_cast<GetCooperativeMatrixProperties>(
        vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
    uint32_t count = 0;
    if (get == nullptr || get(handle, &count, nullptr) != VK_SUCCESS) return;
    std::vector<CooperativeMatrixProperties> list(
        count, chained<CooperativeMatrixProperties>(kTypeCooperativeMatrixProperties));
    if (get(handle, &count, list.data()) != VK_SUCCESS) return;
    // llvmpipe names the smallest shape and takes its multiples.
    const auto has_16 = [&](uint32_t size) { return size == 16 || (info.is_software && 16 % size == 0); };
    for (const auto& p : list) {
        const bool fits = has_16(p.MSize) && has_16(p.NSize) && has_16(p.KSize) && p.BType == p.AType &&
                          p.CType == kComponentFloat32 && p.ResultType == kComponentFloat32 &&
                          p.scope == kScopeSubgroup && !p.saturatingAccumulation;
        info.cooperative_matrix |= fits && p.AType == kComponentFloat16;
        info.cooperative_matrix_bfloat16 |= fits && p.AType == kComponentBfloat16;
    }
}

// What kernels that work in subgroups ask for where drivers leave a choice. Intel's compiler builds them for
// 8, 16 or 32 lanes that share as many registers, and names 32. Adreno's have 64 or 128.
void choose_subgroup_size(DeviceInfo& info) {
    if (!info.subgroup_size_control) return;
    const uint32_t wanted = info.profile->subgroup_size != 0 ? info.profile->subgroup_size
                                                             : std::min(info.subgroup_size, kMaxLanes);
    info.subgroup_size = std::clamp(wanted, info.min_subgroup_size, info.max_subgroup_size);
}

// For tests: the other way of optional features. "no-matrices": those of products and of sums in memory;
// "minimal": all of them, and the least subgroup operations and shared memory that Vulkan allows.
void leave_out_options(DeviceInfo& info, std::string_view caps) {
    constexpr uint32_t kMinSharedMemory = 16384;
    if (caps != "minimal" && caps != "no-matrices") return;
    info.cooperative_matrix = info.cooperative_matrix_bfloat16 = info.bfloat16 = false;
    info.float32_atomic_add = false;
    if (caps == "no-matrices") return;
    info.float16 = false;
    info.subgroup_size_control = info.external_memory_host = info.memory_budget = false;
    info.external_memory_fd = info.dma_buf = false;
    info.queues = 0;
    info.float_controls = {};
    info.subgroup_features = VK_SUBGROUP_FEATURE_BASIC_BIT;
    info.shared_memory_bytes = std::min(info.shared_memory_bytes, kMinSharedMemory);
}

// Fills the optional features and returns what is missing of the required ones.
std::string read_features(VkInstance instance, VkPhysicalDevice handle, DeviceInfo& info) {
    const auto extensions = device_extensions(handle);
    auto bfloat16 = chained<Bfloat16Features>(kTypeBfloat16Features);
    auto matrix = chained<CooperativeMatrixFeatures>(kTypeCooperativeMatrixFeatures);
    auto atomics = chained<VkPhysicalDeviceShaderAtomicFloatFeaturesEXT>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT);
    auto control = chained<VkPhysicalDeviceSubgroupSizeControlFeatures>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
    auto maintenance4 = chained<VkPhysicalDeviceMaintenance4Features>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES);
    auto v12 =
        chained<VkPhysicalDeviceVulkan12Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
    auto v11 = chained<VkPhysicalDeviceVulkan11Features>(
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, &v12);
    auto features = chained<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &v11);
    void** tail = &v12.pNext;
    const auto append = [&](auto& s) {
        *tail = &s;
        tail = &s.pNext;
    };
    const bool v13 = info.api_version >= VK_API_VERSION_1_3;
    if (v13 || contains(extensions, VK_KHR_MAINTENANCE_4_EXTENSION_NAME)) append(maintenance4);
    if (v13 || contains(extensions, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME)) append(control);
    if (contains(extensions, VK_EXT_SHADER_ATOMIC_FLOAT_EXTENSION_NAME)) append(atomics);
    if (contains(extensions, kCooperativeMatrixExtension)) append(matrix);
    if (contains(extensions, kBfloat16Extension)) append(bfloat16);
    vkGetPhysicalDeviceFeatures2(handle, &features);

    info.reported_compute_units = read_compute_units(handle, extensions);
    info.float16 = v12.shaderFloat16;
    info.int8 = v12.shaderInt8;
    info.float32_atomic_add = atomics.shaderBufferFloat32AtomicAdd;
    info.bfloat16 = bfloat16.shaderBFloat16Type;
    if (matrix.cooperativeMatrix && v12.shaderFloat16 && v12.vulkanMemoryModel &&
        v12.vulkanMemoryModelDeviceScope) {
        read_cooperative_matrices(instance, handle, info);
        info.cooperative_matrix_bfloat16 &= info.bfloat16 && bfloat16.shaderBFloat16CooperativeMatrix;
    }
    info.subgroup_size_control = control.subgroupSizeControl && control.computeFullSubgroups;
    info.external_memory_host = contains(extensions, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    if (info.external_memory_host) {
        auto host = chained<VkPhysicalDeviceExternalMemoryHostPropertiesEXT>(
            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT);
        auto properties =
            chained<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &host);
        vkGetPhysicalDeviceProperties2(handle, &properties);
        info.host_import_alignment = host.minImportedHostPointerAlignment;
    }
    info.external_memory_fd = contains(extensions, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
    info.dma_buf =
        info.external_memory_fd && contains(extensions, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME);
    const char* statistics = std::getenv("ANYMPS_PIPELINE_STATISTICS");
    info.pipeline_statistics = statistics && std::string_view(statistics) == "1" &&
                               contains(extensions, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
    info.memory_budget = contains(extensions, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    const char* caps = std::getenv("ANYMPS_CAPS");
    leave_out_options(info, caps ? caps : "");
    info.profile = &find_profile(info);
    choose_subgroup_size(info);

    std::string missing;
    const auto require = [&](VkBool32 present, const char* name) {
        if (!present) missing += (missing.empty() ? "" : ", ") + std::string(name);
    };
    require(v12.bufferDeviceAddress, "bufferDeviceAddress");
    require(v12.timelineSemaphore, "timelineSemaphore");
    require(v12.hostQueryReset, "hostQueryReset");
    require(features.features.shaderInt64, "shaderInt64");
    require(features.features.shaderInt16, "shaderInt16");
    require(v12.shaderInt8, "shaderInt8");
    require(v12.storageBuffer8BitAccess, "storageBuffer8BitAccess");
    require(v11.storageBuffer16BitAccess, "storageBuffer16BitAccess");
    require(maintenance4.maintenance4, "maintenance4");
    return missing;
}

// ANYMPS_SUBMISSION_SECONDS replaces the limit, also where nobody watches.
void read_submission_seconds(DeviceInfo& info) {
    const char* seconds = std::getenv("ANYMPS_SUBMISSION_SECONDS");
    if (seconds != nullptr && *seconds != '\0')
        info.asked_submission_seconds = std::max(0.0, std::strtod(seconds, nullptr));
}

PhysicalDevice describe(VkInstance instance, VkPhysicalDevice handle) {
    PhysicalDevice device;
    device.handle = handle;
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(handle, &properties);
    device.info.name = properties.deviceName;
    device.info.api_version = properties.apiVersion;
    if (properties.apiVersion < VK_API_VERSION_1_2) {
        device.unsuitable = "it has Vulkan " + version_string(properties.apiVersion) + "; 1.2 is needed";
        return device;
    }
    read_properties(handle, device.info);
    read_memory(handle, device.info);
    read_submission_seconds(device.info);
    // For tests: the kernels that GPUs get (barriers, shared memory, large workgroups) on a software driver.
    const char* kernels = std::getenv("ANYMPS_KERNELS");
    const bool as_gpu = device.info.is_software && kernels && std::string_view(kernels) == "gpu";
    if (as_gpu) device.info.is_software = false;
    const std::string missing = read_features(instance, handle, device.info);
    if (as_gpu)
        device.info.reported_compute_units = 64;  // with few, no reduction and no product along k is split
    if (!missing.empty()) {
        device.unsuitable = "it lacks " + missing;
    } else if (!read_queue_family(handle, device.info)) {
        device.unsuitable = "it has no queue for compute";
    }
    return device;
}

int rank(const DeviceInfo& info) {
    return info.is_software ? 2 : info.is_integrated ? 1 : 0;
}

}  // namespace

std::string version_string(uint32_t version) {
    return std::to_string(VK_API_VERSION_MAJOR(version)) + "." +
           std::to_string(VK_API_VERSION_MINOR(version)) + "." +
           std::to_string(VK_API_VERSION_PATCH(version));
}

Instance::Instance() {
    if (volkInitialize() != VK_SUCCESS) {
        throw Error(
            VK_ERROR_INITIALIZATION_FAILED,
            "The Vulkan loader (libvulkan.so.1) was not found. Install it: apt install libvulkan1 on Debian "
            "and Ubuntu, dnf install vulkan-loader on Fedora.");
    }
    uint32_t count = 0;
    VK_CHECK(vkEnumerateInstanceExtensionProperties(nullptr, &count, nullptr));
    std::vector<VkExtensionProperties> available(count);
    VK_CHECK(vkEnumerateInstanceExtensionProperties(nullptr, &count, available.data()));
    std::vector<const char*> extensions;
    debug_utils_ = contains(available, VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
    if (debug_utils_) extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);

    VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
    application.pApplicationName = "PyTorch";
    application.pEngineName = "torch-anymps";
    application.apiVersion = VK_API_VERSION_1_3;
    VkInstanceCreateInfo create{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    create.pApplicationInfo = &application;
    create.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    create.ppEnabledExtensionNames = extensions.data();
    VK_CHECK(vkCreateInstance(&create, nullptr, &handle_));
    volkLoadInstanceOnly(handle_);

    uint32_t devices = 0;
    VK_CHECK(vkEnumeratePhysicalDevices(handle_, &devices, nullptr));
    std::vector<VkPhysicalDevice> handles(devices);
    VK_CHECK(vkEnumeratePhysicalDevices(handle_, &devices, handles.data()));
    for (VkPhysicalDevice handle : handles) physical_devices_.push_back(describe(handle_, handle));
}

Instance::~Instance() {
    if (handle_ != VK_NULL_HANDLE) vkDestroyInstance(handle_, nullptr);
}

std::vector<int> best_devices(const std::vector<PhysicalDevice>& devices) {
    std::vector<int> best;
    for (int i = 0; i < static_cast<int>(devices.size()); ++i) {
        if (!devices[i].unsuitable.empty()) continue;
        if (!best.empty() && rank(devices[i].info) < rank(devices[best[0]].info)) best.clear();
        if (best.empty() || rank(devices[i].info) == rank(devices[best[0]].info)) best.push_back(i);
    }
    return best;
}

int choose_device(const std::vector<PhysicalDevice>& devices, const std::string& selection) {
    const auto lower = [](std::string s) {
        std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return std::tolower(c); });
        return s;
    };
    const bool by_index = !selection.empty() && std::all_of(selection.begin(), selection.end(),
                                                            [](unsigned char c) { return std::isdigit(c); });
    int best = -1;
    for (int i = 0; i < static_cast<int>(devices.size()); ++i) {
        if (!devices[i].unsuitable.empty()) continue;
        if (by_index ? std::to_string(i) != selection
                     : lower(devices[i].info.name).find(lower(selection)) == std::string::npos) {
            continue;
        }
        if (best < 0 || rank(devices[i].info) < rank(devices[best].info)) best = i;
    }
    return best;
}

}  // namespace anymps::vulkan
