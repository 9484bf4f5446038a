// A counter that queues and the host raise and wait for.
#pragma once

#include <cstdint>

#include "vulkan/device.h"

namespace anymps::vulkan {

class TimelineSemaphore {
  public:
    explicit TimelineSemaphore(const Device& device);
    ~TimelineSemaphore();
    TimelineSemaphore(const TimelineSemaphore&) = delete;
    TimelineSemaphore& operator=(const TimelineSemaphore&) = delete;

    VkSemaphore handle() const { return handle_; }
    uint64_t value() const;
    // Blocks until the counter is at least `value`. Throws Error when the device is lost.
    void wait(uint64_t value) const;
    // Raises it from the host, to more than it is and than any signal that is under way.
    void signal(uint64_t value) const;

  private:
    const Device& device_;
    VkSemaphore handle_ = VK_NULL_HANDLE;
};

}  // namespace anymps::vulkan
