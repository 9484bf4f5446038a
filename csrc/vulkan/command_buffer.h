// Command buffers, each in a pool of its own: one is reset without the others.
#pragma once

#include "vulkan/api.h"
#include "vulkan/queues.h"

namespace anymps::vulkan {

class Device;

// Owner: the caller, who destroys the pool.
struct CommandBuffer {
    VkCommandPool pool = VK_NULL_HANDLE;
    VkCommandBuffer handle = VK_NULL_HANDLE;
};

// A primary one, for a lane's queue. Raises vulkan::Error, and leaves no pool then.
CommandBuffer create_command_buffer(const Device& device, VkCommandPoolCreateFlags pool_flags = 0,
                                    Lane lane = Lane::Stream);

// One more in the pool of another, which goes with it. Raises vulkan::Error.
VkCommandBuffer add_command_buffer(const Device& device, VkCommandPool pool);

// Begins recording. Raises vulkan::Error.
void begin_command_buffer(const Device& device, VkCommandBuffer handle, VkCommandBufferUsageFlags usage);

}  // namespace anymps::vulkan
