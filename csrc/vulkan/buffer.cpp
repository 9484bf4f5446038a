#include "vulkan/buffer.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <string>

#include "vulkan/check.h"

namespace anymps::vulkan {
namespace {

constexpr auto kHostAllocation = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
constexpr VkBufferUsageFlags kUsage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                      VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                                      VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;

VkExternalMemoryHandleTypeFlagBits flag(MemoryHandle handle) {
    return handle == MemoryHandle::DmaBuf ? VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT
                                          : VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
}

}  // namespace

bool can_share(const Device& device, MemoryHandle handle) {
    const DeviceInfo& info = device.info();
    if (!(handle == MemoryHandle::DmaBuf ? info.dma_buf : info.external_memory_fd)) return false;
    VkPhysicalDeviceExternalBufferInfo asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO};
    asked.usage = kUsage;
    asked.handleType = flag(handle);
    VkExternalBufferProperties found{VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    vkGetPhysicalDeviceExternalBufferProperties(device.physical(), &asked, &found);
    constexpr VkExternalMemoryFeatureFlags kBoth =
        VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
    return (found.externalMemoryProperties.externalMemoryFeatures & kBoth) == kBoth;
}

Buffer::Buffer(const Device& device, uint64_t bytes, MemoryKind kind) : device_(device), bytes_(bytes) {
    const auto& api = device.api();
    try {
        const VkMemoryRequirements requirements = create(bytes + kGuardTailBytes, nullptr);
        const uint32_t type = allocate(requirements, kind);
        bind();
        if (device.mapped(kind, type)) {
            void* host = nullptr;
            VK_CHECK(api.vkMapMemory(device.handle(), memory_, 0, VK_WHOLE_SIZE, 0, &host));
            host_ = static_cast<std::byte*>(host);
        }
    } catch (...) {
        release();
        throw;
    }
}

Buffer::Buffer(const Device& device, std::byte* memory, uint64_t bytes)
    : device_(device), bytes_(bytes - kGuardTailBytes), host_(memory) {
    const auto& api = device.api();
    try {
        VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
        external.handleTypes = kHostAllocation;
        const VkMemoryRequirements requirements = create(bytes, &external);
        VkMemoryHostPointerPropertiesEXT pointer{VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
        VK_CHECK(api.vkGetMemoryHostPointerPropertiesEXT(device.handle(), kHostAllocation, memory, &pointer));
        if (requirements.size > bytes)
            throw Error(VK_ERROR_FEATURE_NOT_PRESENT, device.info().name + " wants more memory of the host.");
        VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
        flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
        VkImportMemoryHostPointerInfoEXT import{VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                                &flags};
        import.handleType = kHostAllocation;
        import.pHostPointer = memory;
        VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &import};
        allocate.allocationSize = bytes;
        allocate.memoryTypeIndex =
            device.host_memory_type(requirements.memoryTypeBits & pointer.memoryTypeBits);
        VK_CHECK(api.vkAllocateMemory(device.handle(), &allocate, nullptr, &memory_));
        bind();
    } catch (...) {
        release();
        throw;
    }
}

Buffer::Buffer(const Device& device, uint64_t bytes, MemoryHandle handle) : device_(device), bytes_(bytes) {
    try {
        VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
        external.handleTypes = flag(handle);
        const VkMemoryRequirements requirements = create(bytes + kGuardTailBytes, &external);
        VkMemoryDedicatedAllocateInfo dedicated{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
        dedicated.buffer = handle_;
        VkExportMemoryAllocateInfo exported{VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO, &dedicated};
        exported.handleTypes = external.handleTypes;
        memory_type_ = allocate(requirements, MemoryKind::Staging, &exported);
        bind();
    } catch (...) {
        release();
        throw;
    }
}

Buffer::Buffer(const Device& device, uint64_t bytes, MemoryHandle handle, const SharedMemoryFile& shared)
    : device_(device), bytes_(bytes) {
    const auto& api = device.api();
    struct Duplicate {
        int file = -1;
        ~Duplicate() {
            if (file >= 0) close(file);
        }
    } duplicate;
    try {
        VkExternalMemoryBufferCreateInfo external{VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
        external.handleTypes = flag(handle);
        const VkMemoryRequirements requirements = create(bytes + kGuardTailBytes, &external);
        uint32_t type = shared.memory_type;
        if (handle == MemoryHandle::DmaBuf) {
            VkMemoryFdPropertiesKHR file{VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR};
            VK_CHECK(api.vkGetMemoryFdPropertiesKHR(device.handle(), flag(handle), shared.file, &file));
            const uint32_t types = requirements.memoryTypeBits & file.memoryTypeBits;
            if (types == 0)
                throw Error(VK_ERROR_FEATURE_NOT_PRESENT, device.info().name + " takes no such file.");
            type = std::countr_zero(types);
        }
        VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
        flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
        VkMemoryDedicatedAllocateInfo dedicated{VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO, &flags};
        dedicated.buffer = handle_;
        VkImportMemoryFdInfoKHR import{VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, &dedicated};
        import.handleType = flag(handle);
        import.fd = duplicate.file = fcntl(shared.file, F_DUPFD_CLOEXEC, 0);
        VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &import};
        allocate.allocationSize = requirements.size;
        allocate.memoryTypeIndex = type;
        VK_CHECK(api.vkAllocateMemory(device.handle(), &allocate, nullptr, &memory_));
        duplicate.file = -1;  // the driver's now
        bind();
    } catch (...) {
        release();
        throw;
    }
}

SharedMemoryFile Buffer::export_memory(MemoryHandle handle) const {
    VkMemoryGetFdInfoKHR wanted{VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR};
    wanted.memory = memory_;
    wanted.handleType = flag(handle);
    SharedMemoryFile shared{-1, memory_type_};
    VK_CHECK(device_.api().vkGetMemoryFdKHR(device_.handle(), &wanted, &shared.file));
    return shared;
}

// In the first heap of the kind that has room. Returns the memory type.
uint32_t Buffer::allocate(const VkMemoryRequirements& requirements, MemoryKind kind, const void* next) {
    const DeviceInfo& info = device_.info();
    VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, next};
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags};
    allocate.allocationSize = requirements.size;
    VkResult result = VK_ERROR_FEATURE_NOT_PRESENT;
    for (const uint32_t type : device_.memory_types(kind)) {
        if (!(requirements.memoryTypeBits & (1u << type))) continue;
        allocate.memoryTypeIndex = type;
        result = requirements.size > info.heaps[info.memory_types[type].heap].bytes
                     ? VK_ERROR_OUT_OF_DEVICE_MEMORY
                     : device_.api().vkAllocateMemory(device_.handle(), &allocate, nullptr, &memory_);
        if (result == VK_SUCCESS) return type;
        if (result != VK_ERROR_OUT_OF_DEVICE_MEMORY && result != VK_ERROR_OUT_OF_HOST_MEMORY) break;
    }
    if (result == VK_ERROR_FEATURE_NOT_PRESENT)
        throw Error(result, info.name + " takes storage buffers in no memory type that is needed.");
    throw Error(result, "vkAllocateMemory of " + std::to_string(requirements.size) + " bytes on " +
                            info.name + ": " + result_name(result) + ".");
}

Buffer::~Buffer() {
    release();
}

VkMemoryRequirements Buffer::create(uint64_t size, const void* next) {
    VkBufferCreateInfo create{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, next};
    create.size = size;
    create.usage = kUsage;
    const auto& families = device_.families();
    create.sharingMode = families.size() > 1 ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE;
    create.queueFamilyIndexCount = static_cast<uint32_t>(families.size());
    create.pQueueFamilyIndices = families.data();
    VK_CHECK(device_.api().vkCreateBuffer(device_.handle(), &create, nullptr, &handle_));
    VkMemoryRequirements requirements;
    device_.api().vkGetBufferMemoryRequirements(device_.handle(), handle_, &requirements);
    return requirements;
}

void Buffer::bind() {
    const auto& api = device_.api();
    VK_CHECK(api.vkBindBufferMemory(device_.handle(), handle_, memory_, 0));
    VkBufferDeviceAddressInfo info{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
    info.buffer = handle_;
    address_ = api.vkGetBufferDeviceAddress(device_.handle(), &info);
}

void Buffer::release() {
    const auto& api = device_.api();
    if (handle_ != VK_NULL_HANDLE) api.vkDestroyBuffer(device_.handle(), handle_, nullptr);
    if (memory_ != VK_NULL_HANDLE) api.vkFreeMemory(device_.handle(), memory_, nullptr);
}

}  // namespace anymps::vulkan
