// Timestamps written by the queue.
#pragma once

#include <cstdint>

#include "vulkan/device.h"

namespace anymps::vulkan {

class QueryPool {
  public:
    QueryPool(const Device& device, uint32_t count);
    ~QueryPool();
    QueryPool(const QueryPool&) = delete;
    QueryPool& operator=(const QueryPool&) = delete;

    VkQueryPool handle() const { return handle_; }
    uint32_t count() const { return count_; }
    // Makes a timestamp writable again, from the host; nothing in flight may use it.
    void reset(uint32_t index) { reset(index, 1); }
    void reset(uint32_t first, uint32_t count);
    // The timestamp in ticks of DeviceInfo::timestamp_period_ns. False while it has not been written.
    bool read(uint32_t index, uint64_t* ticks) const { return read(index, 1, ticks); }
    // The same of `count` timestamps in a row: false while one of them has not been written.
    bool read(uint32_t first, uint32_t count, uint64_t* ticks) const;

  private:
    const Device& device_;
    uint32_t count_;
    VkQueryPool handle_ = VK_NULL_HANDLE;
};

}  // namespace anymps::vulkan
