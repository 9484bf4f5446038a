#include "vulkan/command_buffer.h"

#include "vulkan/check.h"
#include "vulkan/device.h"

namespace anymps::vulkan {

CommandBuffer create_command_buffer(const Device& device, VkCommandPoolCreateFlags pool_flags, Lane lane) {
    const auto& api = device.api();
    CommandBuffer result;
    VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.flags = pool_flags;
    pool.queueFamilyIndex = device.family(lane);
    VK_CHECK(api.vkCreateCommandPool(device.handle(), &pool, nullptr, &result.pool));
    try {
        result.handle = add_command_buffer(device, result.pool);
    } catch (...) {
        api.vkDestroyCommandPool(device.handle(), result.pool, nullptr);
        throw;
    }
    return result;
}

VkCommandBuffer add_command_buffer(const Device& device, VkCommandPool pool) {
    VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    allocate.commandPool = pool;
    allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    allocate.commandBufferCount = 1;
    VkCommandBuffer handle = VK_NULL_HANDLE;
    VK_CHECK(device.api().vkAllocateCommandBuffers(device.handle(), &allocate, &handle));
    return handle;
}

void begin_command_buffer(const Device& device, VkCommandBuffer handle, VkCommandBufferUsageFlags usage) {
    VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = usage;
    VK_CHECK(device.api().vkBeginCommandBuffer(handle, &begin));
}

}  // namespace anymps::vulkan
