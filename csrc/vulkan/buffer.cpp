#include "vulkan/buffer.h"

#include <string>

#include "vulkan/check.h"

namespace anymps::vulkan {

Buffer::Buffer(const Device& device, uint64_t bytes, MemoryKind kind) : device_(device), bytes_(bytes) {
    const auto& api = device.api();
    try {
        VkBufferCreateInfo create{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
        create.size = bytes + kGuardTailBytes;
        create.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                       VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                       VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
        create.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
        VK_CHECK(api.vkCreateBuffer(device.handle(), &create, nullptr, &handle_));

        VkMemoryRequirements requirements;
        api.vkGetBufferMemoryRequirements(device.handle(), handle_, &requirements);
        const uint32_t type = allocate(requirements, kind);
        VK_CHECK(api.vkBindBufferMemory(device.handle(), handle_, memory_, 0));
        if (device.mapped(kind, type)) {
            void* host = nullptr;
            VK_CHECK(api.vkMapMemory(device.handle(), memory_, 0, VK_WHOLE_SIZE, 0, &host));
            host_ = static_cast<std::byte*>(host);
        }
        VkBufferDeviceAddressInfo info{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
        info.buffer = handle_;
        address_ = api.vkGetBufferDeviceAddress(device.handle(), &info);
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

void Buffer::release() {
    const auto& api = device_.api();
    if (handle_ != VK_NULL_HANDLE) api.vkDestroyBuffer(device_.handle(), handle_, nullptr);
    if (memory_ != VK_NULL_HANDLE) api.vkFreeMemory(device_.handle(), memory_, nullptr);
}

}  // namespace anymps::vulkan
