#include "vulkan/buffer.h"

#include <string>

#include "vulkan/check.h"

namespace anymps::vulkan {
namespace {

constexpr auto kHostAllocation = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;

}  // namespace

Buffer::Buffer(const Device& device, uint64_t bytes, MemoryKind kind) : device_(device), bytes_(bytes) {
    const auto& api = device.api();
    try {
        create(bytes + kGuardTailBytes, nullptr);
        VkMemoryRequirements requirements;
        api.vkGetBufferMemoryRequirements(device.handle(), handle_, &requirements);
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
        create(bytes, &external);
        VkMemoryRequirements requirements;
        api.vkGetBufferMemoryRequirements(device.handle(), handle_, &requirements);
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

// In the first heap of the kind that has room. Returns the memory type.
uint32_t Buffer::allocate(const VkMemoryRequirements& requirements, MemoryKind kind) {
    const DeviceInfo& info = device_.info();
    VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
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

void Buffer::create(uint64_t size, const void* next) {
    VkBufferCreateInfo create{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, next};
    create.size = size;
    create.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                   VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                   VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
    const auto& families = device_.families();
    create.sharingMode = families.size() > 1 ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE;
    create.queueFamilyIndexCount = static_cast<uint32_t>(families.size());
    create.pQueueFamilyIndices = families.data();
    VK_CHECK(device_.api().vkCreateBuffer(device_.handle(), &create, nullptr, &handle_));
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
