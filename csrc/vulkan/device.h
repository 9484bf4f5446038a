// A logical device: its one queue, the shared pipeline layout, memory types and the pipeline cache.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "vulkan/instance.h"

namespace anymps::vulkan {

// Where a buffer lives.
enum class MemoryKind {
    Device,   // device-local; on unified memory also mapped
    Ring,     // written by the host once, read by kernels: device-local and mapped where there is such a type
    Staging,  // host memory, mapped and cached, for transfers
};

constexpr uint32_t kPushConstantBytes = 128;  // what every Vulkan device has

// Owner: runtime::device, for the life of the process. Immutable after construction but for queue submission,
// which submit_mutex() guards.
class Device {
  public:
    Device(const Instance& instance, const PhysicalDevice& physical);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    VkDevice handle() const { return handle_; }
    const VolkDeviceTable& api() const { return api_; }
    const DeviceInfo& info() const { return info_; }
    VkQueue queue() const { return queue_; }
    VkPipelineLayout pipeline_layout() const { return layout_; }
    VkPipelineCache pipeline_cache() const { return cache_; }
    // Memory types for a kind, the best first, one a heap: an integrated GPU whose own heap is full goes on
    // in the system's, a discrete one never. At least one.
    const std::vector<uint32_t>& memory_types(MemoryKind kind) const {
        return memory_types_[static_cast<size_t>(kind)];
    }
    bool mapped(MemoryKind kind, uint32_t memory_type) const;

    // Bytes that other programs and this one leave free in the heaps of MemoryKind::Device; their size where
    // the driver does not tell.
    uint64_t free_memory() const;
    uint64_t device_memory() const;

    // Reads and writes the pipeline cache of this driver in a folder (created when absent). Errors of the
    // file system are ignored: the cache is only a speed-up. save writes a new file and renames it.
    void load_pipeline_cache(const std::string& folder);
    void save_pipeline_cache(const std::string& folder) const;

    // Names an object for validation messages and profilers; no cost where debug utils are absent.
    void set_name(VkObjectType type, uint64_t handle, const std::string& name) const;

  private:
    std::vector<uint32_t> choose_memory_types(MemoryKind kind) const;
    std::string cache_file(const std::string& folder) const;

    VkPhysicalDevice physical_;
    DeviceInfo info_;
    bool debug_utils_;
    VkDevice handle_ = VK_NULL_HANDLE;
    VolkDeviceTable api_{};
    VkQueue queue_ = VK_NULL_HANDLE;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkPipelineCache cache_ = VK_NULL_HANDLE;
    std::array<std::vector<uint32_t>, 3> memory_types_;  // by kind
};

}  // namespace anymps::vulkan
