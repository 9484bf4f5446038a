// From a device address to the VkBuffer that holds it, for transfer commands and for host pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace anymps::vulkan {
class Buffer;
}

namespace anymps::runtime {

struct BufferRange {
    const vulkan::Buffer* buffer;
    uint64_t offset;
};

// Thread-safe. A buffer is added when it is created and removed before it is destroyed.
void map_buffer(std::shared_ptr<const vulkan::Buffer> buffer);
void unmap_buffer(const vulkan::Buffer& buffer);

// Raises an internal error when no buffer holds [address, address + bytes).
BufferRange find_buffer(uint64_t address, uint64_t bytes);

// The buffer at an address, for who needs it longer than its owner; nullptr where there is none.
std::shared_ptr<const vulkan::Buffer> share_buffer(uint64_t address);

// The host's pointer to the same bytes; nullptr where the memory is not host-visible.
std::byte* host_pointer(uint64_t address, uint64_t bytes);

}  // namespace anymps::runtime
