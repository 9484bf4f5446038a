// The commands of a graph as data, so that they can be recorded once more with timestamps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/command.h"
#include "runtime/command_timer.h"
#include "runtime/hazards.h"

namespace anymps::vulkan {
class Buffer;
class QueryPool;
}  // namespace anymps::vulkan

namespace anymps::runtime {

// Guarded by the encoder's lock until the last command was added, but for take().
class KeptCommands {
  public:
    explicit KeptCommands(const vulkan::Device& device);
    ~KeptCommands();
    KeptCommands(const KeptCommands&) = delete;
    KeptCommands& operator=(const KeptCommands&) = delete;

    // barrier: the stages that waited before the command, or 0.
    void add(const Command& command, std::span<const Access> accesses, VkPipelineStageFlags barrier);

    // The commands with a timestamp before and after each, made at the first call: a command buffer that
    // orders itself as the graph's own does.
    VkCommandBuffer timed();
    const vulkan::QueryPool& stamps() const { return *stamps_; }

    // Memory that the host reads for the timestamps of one replay; an earlier one's where that was given
    // back.
    std::unique_ptr<vulkan::Buffer> ticks();
    void give_back(std::unique_ptr<vulkan::Buffer> ticks);

    // Hands out every command with its times. ticks: those of stamps(), after timed() has run.
    void take(const uint64_t* ticks, const CommandOrigin& origin, const CommandTimer::Sink& sink) const;

  private:
    struct Kept {
        Command command;  // whose push constants are these:
        std::vector<std::byte> push;
        uint64_t bytes_read, bytes_written;
        VkPipelineStageFlags barrier;
        uint32_t first = 0, last = 0;  // slots of stamps_
    };
    uint32_t number_stamps();

    const vulkan::Device& device_;
    std::vector<Kept> commands_;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkCommandBuffer timed_ = VK_NULL_HANDLE;
    std::unique_ptr<vulkan::QueryPool> stamps_;
    std::mutex mutex_;  // guards the next one
    std::vector<std::unique_ptr<vulkan::Buffer>> spare_;
};

}  // namespace anymps::runtime
