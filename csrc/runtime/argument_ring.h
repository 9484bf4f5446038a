// Host-written memory that kernels read: arguments too large for push constants, and small uploads.
#pragma once

#include <cstdint>
#include <deque>

#include "vulkan/buffer.h"

namespace anymps::runtime {

// A ring whose parts are free again once the submission that used them has completed. Not thread-safe.
class ArgumentRing {
  public:
    static constexpr uint64_t kBytes = 8ull << 20;
    static constexpr uint64_t kMaxBytes = 256ull << 10;  // of one reservation

    explicit ArgumentRing(const vulkan::Device& device);

    struct Slice {
        uint64_t address;
        std::byte* host;
        uint64_t offset;  // in the buffer
        const vulkan::Buffer* buffer;
    };
    // bytes <= kMaxBytes, 16-byte aligned. False when the ring is full: submit, wait for oldest(), reclaim.
    bool reserve(uint64_t bytes, Slice* slice);
    // Everything reserved so far belongs to this submission or an earlier one.
    void close(uint64_t submission);
    void reclaim(uint64_t completed_submission);
    // The serial to wait for to free some of it; 0 when nothing was closed.
    uint64_t oldest() const { return closed_.empty() ? 0 : closed_.front().submission; }

  private:
    struct Closed {
        uint64_t submission;
        uint64_t head;
    };
    vulkan::Buffer buffer_;
    uint64_t head_ = 0;  // both count up for ever; the place in the ring is the remainder
    uint64_t tail_ = 0;
    std::deque<Closed> closed_;
};

}  // namespace anymps::runtime
