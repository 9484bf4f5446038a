// A stream beside the encoder's, for work that goes on while the encoder's waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "runtime/command_encoder.h"
#include "vulkan/command_buffer.h"
#include "vulkan/device.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {

// Batches of dispatches on the device's side queue. Dispatches of a batch are independent of each other, and
// so are batches: who needs the results of one waits for it on the host, before it submits the next. That way
// the queue never waits on the device, so it cannot block other users of it. Each batch sees what the host,
// other processes and the encoder's stream had written when it was submitted. Owner: one thread.
class SideStream {
  public:
    explicit SideStream(const vulkan::Device& device);
    // Waits for all batches.
    ~SideStream();
    SideStream(const SideStream&) = delete;
    SideStream& operator=(const SideStream&) = delete;

    // push: at most 128 bytes. Waits for the driver's compiler where the pipeline is not built.
    void dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes, Grid grid);

    // Sends the batch, behind the encoder's serial `after`, which has completed. Returns the batch's serial;
    // its end raises `signal`, too, where there is one, to `value`.
    uint64_t submit(uint64_t after, const vulkan::TimelineSemaphore* signal = nullptr, uint64_t value = 0);

    bool completed(uint64_t serial) const { return semaphore_.value() >= serial; }
    void wait(uint64_t serial) const { semaphore_.wait(serial); }

  private:
    struct Batch : vulkan::CommandBuffer {
        uint64_t serial = 0;  // of its last submission
    };
    void begin();

    const vulkan::Device& device_;
    vulkan::TimelineSemaphore semaphore_;
    std::deque<Batch> batches_;  // oldest submission first; the back one is being recorded
    bool recording_ = false;
    VkPipeline bound_ = VK_NULL_HANDLE;
    uint64_t serial_ = 0;
};

}  // namespace anymps::runtime
