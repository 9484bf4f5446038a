// What the stream waits for besides its own commands: work that goes on beside it, such as collectives.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {

// Between the encoder, which submits the stream's commands, and those whose work it waits for. Thread-safe.
class StreamWaits {
  public:
    struct Wait {
        std::shared_ptr<const vulkan::TimelineSemaphore> semaphore;
        uint64_t value;
    };

    // Leaked: threads may use it while static objects are destroyed.
    static StreamWaits& instance();

    void add(Wait wait);
    // What the next submission waits for.
    std::vector<Wait> take();
    bool empty() const { return !pending_.load(std::memory_order_acquire); }

    // The encoder's counter of completed serials.
    void set_timeline(const vulkan::TimelineSemaphore& timeline) { timeline_ = &timeline; }
    const vulkan::TimelineSemaphore& timeline() const { return *timeline_; }

    // What has gone wrong in work that the stream was told to wait for; raised once, at the next
    // synchronization.
    void fail(std::exception_ptr failure);
    void raise_failure();

  private:
    std::mutex mutex_;
    std::atomic<bool> pending_{false};
    std::atomic<bool> failed_{false};
    std::vector<Wait> waits_;
    std::exception_ptr failure_;
    const vulkan::TimelineSemaphore* timeline_ = nullptr;
};

std::vector<vulkan::SemaphoreValue> values_of(const std::vector<StreamWaits::Wait>& waits);

// What is recorded from now on runs once the semaphore has come to the value. Whoever raises it must not need
// the stream for that, nor the encoder's lock. The semaphore has to outlive the stream's wait.
void hold_stream(std::shared_ptr<const vulkan::TimelineSemaphore> semaphore, uint64_t value);

}  // namespace anymps::runtime
