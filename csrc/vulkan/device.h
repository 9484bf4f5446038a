// A logical device: its queues, the shared pipeline layout, memory types and the pipeline cache.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "vulkan/instance.h"
#include "vulkan/queues.h"

namespace anymps::vulkan {

// Where a buffer lives.
enum class MemoryKind {
    Device,   // device-local; on unified memory also mapped
    Ring,     // written by the host once, read by kernels: device-local and mapped where there is such a type
    Staging,  // host memory, mapped and cached, for transfers
};

constexpr uint32_t kPushConstantBytes = 128;  // what every Vulkan device has

// A value of a timeline semaphore.
struct SemaphoreValue {
    VkSemaphore semaphore;
    uint64_t value;
};

// Owner: runtime::device, for the life of the process. Immutable after construction.

class Device {
  public:
    Device(const Instance& instance, const PhysicalDevice& physical);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    VkDevice handle() const { return handle_; }
    VkPhysicalDevice physical() const { return physical_; }
    const VolkDeviceTable& api() const { return api_; }
    const DeviceInfo& info() const { return info_; }
    VkQueue queue(Lane lane = Lane::Stream) const { return queues_[index(lane)]; }
    uint32_t family(Lane lane) const { return chosen_[index(lane)].family; }
    // Whether work beside the stream goes on while the stream's queue waits.
    bool has_side_queue() const { return queue(Lane::Side) != queue(Lane::Stream); }
    // Whether copies do not take the compute units.
    bool has_copy_queues() const { return family(Lane::CopyOut) != family(Lane::Side); }
    // The families of all lanes, each once: buffers are for all of them.
    const std::vector<uint32_t>& families() const { return families_; }
    // Has a queue run commands once all of `after` have come to their values, and raise `signals` when
    // they have run. Thread-safe. Throws Error.
    void submit(Lane lane, std::span<const VkCommandBuffer> commands, std::span<const SemaphoreValue> after,
                std::span<const SemaphoreValue> signals) const;
    VkPipelineLayout pipeline_layout() const { return layout_; }
    VkPipelineCache pipeline_cache() const { return cache_; }
    // Memory types for a kind, the best first, one a heap: an integrated GPU whose own heap is full goes on
    // in the system's, a discrete one never. At least one.
    const std::vector<uint32_t>& memory_types(MemoryKind kind) const {
        return memory_types_[static_cast<size_t>(kind)];
    }
    bool mapped(MemoryKind kind, uint32_t memory_type) const;

    // The type for memory of the host that the driver can take as one of `types`, a bit each; coherent,
    // cached where it can be. Throws Error where there is none.
    uint32_t host_memory_type(uint32_t types) const;

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
    static size_t index(Lane lane) { return static_cast<size_t>(lane); }
    std::string cache_file(const std::string& folder) const;

    VkPhysicalDevice physical_;
    DeviceInfo info_;
    bool debug_utils_;
    VkDevice handle_ = VK_NULL_HANDLE;
    VolkDeviceTable api_{};
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkPipelineCache cache_ = VK_NULL_HANDLE;
    std::array<std::vector<uint32_t>, 3> memory_types_;  // by kind
    Queues chosen_;
    std::vector<uint32_t> families_;
    VkQueue queues_[kLanes] = {};
    mutable std::mutex queue_mutexes_[kLanes];  // of one queue: its first lane's
};

}  // namespace anymps::vulkan
