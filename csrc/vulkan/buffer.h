// One VkBuffer with its own memory and device address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vulkan/device.h"

namespace anymps::vulkan {

// Bytes past the end of every buffer that kernels may read (never write): drivers compile masked loop tails
// to whole vector loads.
constexpr uint64_t kGuardTailBytes = 256;

// RAII, immovable; of memory of its own, or around that of the host. Any thread may read its members.
class Buffer {
  public:
    // bytes > 0. Throws Error with out_of_memory() when the driver refuses.
    Buffer(const Device& device, uint64_t bytes, MemoryKind kind);
    // Over memory that the process has mapped already and keeps mapped while the buffer lives; `memory` and
    // `bytes` are multiples of DeviceInfo::host_import_alignment, and the guard tail is a part of them.
    // Throws Error where the driver does not take it.
    Buffer(const Device& device, std::byte* memory, uint64_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    VkBuffer handle() const { return handle_; }
    uint64_t address() const { return address_; }
    uint64_t bytes() const { return bytes_; }
    // Mapped for the life of the buffer and coherent; nullptr where the kind is not mapped on this device.
    std::byte* host() const { return host_; }

  private:
    uint32_t allocate(const VkMemoryRequirements& requirements, MemoryKind kind);
    void create(uint64_t size, const void* next);
    void bind();
    void release();

    const Device& device_;
    uint64_t bytes_;
    VkBuffer handle_ = VK_NULL_HANDLE;
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
    uint64_t address_ = 0;
    std::byte* host_ = nullptr;
};

}  // namespace anymps::vulkan
