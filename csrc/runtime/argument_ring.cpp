#include "runtime/argument_ring.h"

#include "runtime/address_map.h"

namespace anymps::runtime {

ArgumentRing::ArgumentRing(const vulkan::Device& device) : buffer_(device, kBytes, vulkan::MemoryKind::Ring) {
    map_buffer({std::shared_ptr<void>(), &buffer_});  // which lives as long as the process
}

bool ArgumentRing::reserve(uint64_t bytes, Slice* slice) {
    constexpr uint64_t kAlignment = 16;
    bytes = (bytes + kAlignment - 1) & ~(kAlignment - 1);
    const uint64_t to_end = kBytes - head_ % kBytes;
    const uint64_t skip = bytes > to_end ? to_end : 0;  // a slice never wraps
    if (head_ + skip + bytes - tail_ > kBytes) return false;
    head_ += skip;
    const uint64_t offset = head_ % kBytes;
    *slice = {buffer_.address() + offset, buffer_.host() + offset, offset, &buffer_};
    head_ += bytes;
    return true;
}

void ArgumentRing::close(uint64_t submission) {
    if (closed_.empty() ? head_ != tail_ : head_ != closed_.back().head)
        closed_.push_back({submission, head_});
}

void ArgumentRing::reclaim(uint64_t completed_submission) {
    while (!closed_.empty() && closed_.front().submission <= completed_submission) {
        tail_ = closed_.front().head;
        closed_.pop_front();
    }
}

}  // namespace anymps::runtime
