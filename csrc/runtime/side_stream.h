// A stream beside the encoder's, for work that goes on while the encoder's computes or waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "runtime/address_map.h"
#include "runtime/command_encoder.h"
#include "vulkan/command_buffer.h"
#include "vulkan/device.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {

// Batches of commands on the queue of one of the device's lanes beside the stream's. Commands of a batch are
// independent of each other, and so are batches: who needs the results of one waits for it on the host,
// before it submits the next. That way the queue never waits on the device, so it cannot block other users of
// it. Each batch sees what the host, other processes and the encoder's stream had written when it was
// submitted. Owner: one thread.
class SideStream {
  public:
    SideStream(const vulkan::Device& device, vulkan::Lane lane);
    // Waits for all batches.
    ~SideStream();
    SideStream(const SideStream&) = delete;
    SideStream& operator=(const SideStream&) = delete;

    // push: at most 128 bytes. Waits for the driver's compiler where the pipeline is not built. Not for lanes
    // of copies.
    void dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes, Grid grid);
    void copy(BufferRange to, BufferRange from, uint64_t bytes);

    // Sends the batch, behind the encoder's serial `after`, which has completed. Returns the batch's serial,
    // 0 where nothing was asked for.
    uint64_t submit(uint64_t after);

    bool completed(uint64_t serial) const { return semaphore_.value() >= serial; }
    void wait(uint64_t serial) const { semaphore_.wait(serial); }

  private:
    struct Batch : vulkan::CommandBuffer {
        uint64_t serial = 0;  // of its last submission
    };
    void begin();
    void barrier(VkPipelineStageFlags from, VkPipelineStageFlags to);

    const vulkan::Device& device_;
    const vulkan::Lane lane_;
    const VkPipelineStageFlags stages_;  // that its queue has
    vulkan::TimelineSemaphore semaphore_;
    std::deque<Batch> batches_;  // oldest submission first; the back one is being recorded
    bool recording_ = false;
    VkPipeline bound_ = VK_NULL_HANDLE;
    uint64_t serial_ = 0;
};

}  // namespace anymps::runtime
