// One VkBuffer with its own memory and device address.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vulkan/device.h"

namespace anymps::vulkan {

// Bytes past the end of every buffer that kernels may read (never write): drivers compile masked loop tails
// to whole vector loads.
constexpr uint64_t kGuardTailBytes = 256;

// A file descriptor by which another process uses the same memory.
enum class MemoryHandle : uint32_t {
    OpaqueFd,  // on the same device with the same driver: DeviceInfo::external_uuid
    DmaBuf,    // on any device whose driver takes it
};

// Whether buffers of such memory can be exported and imported.
bool can_share(const Device& device, MemoryHandle handle);

// Memory of another process; the file is whoever's opened it.
struct SharedMemoryFile {
    int file = -1;
    uint32_t memory_type = 0;  // of the exporter
};

// RAII, immovable; of memory of its own, or around that of the host or of another process. Any thread may
// read its members.
class Buffer {
  public:
    // bytes > 0. Throws Error with out_of_memory() when the driver refuses.
    Buffer(const Device& device, uint64_t bytes, MemoryKind kind);
    // Over memory that the process has mapped already and keeps mapped while the buffer lives; `memory` and
    // `bytes` are multiples of DeviceInfo::host_import_alignment, and the guard tail is a part of them.
    // Throws Error where the driver does not take it.
    Buffer(const Device& device, std::byte* memory, uint64_t bytes);
    // In memory of the host that other processes can import. Throws Error where the driver has none.
    Buffer(const Device& device, uint64_t bytes, MemoryHandle handle);
    // Over what another process has exported, with as many bytes. Throws Error where the driver does not take
    // it.
    Buffer(const Device& device, uint64_t bytes, MemoryHandle handle, const SharedMemoryFile& shared);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    VkBuffer handle() const { return handle_; }
    uint64_t address() const { return address_; }
    uint64_t bytes() const { return bytes_; }
    // Mapped for the life of the buffer and coherent; nullptr where the kind is not mapped on this device.
    std::byte* host() const { return host_; }
    // Of a buffer that was made for it. The file is the caller's. Throws Error.
    SharedMemoryFile export_memory(MemoryHandle handle) const;

  private:
    uint32_t allocate(const VkMemoryRequirements& requirements, MemoryKind kind, const void* next = nullptr);
    VkMemoryRequirements create(uint64_t size, const void* next);
    void bind();
    void release();

    const Device& device_;
    uint64_t bytes_;
    VkBuffer handle_ = VK_NULL_HANDLE;
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
    uint32_t memory_type_ = 0;
    uint64_t address_ = 0;
    std::byte* host_ = nullptr;
};

}  // namespace anymps::vulkan
