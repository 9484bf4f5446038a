#include "distributed/segment_buffers.h"

#include <cstring>
#include <utility>

#include "distributed/shared_segment.h"

namespace anymps::distributed {

SegmentBuffers::SegmentBuffers(const vulkan::Device& device, BufferPtr range, int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
        addresses_.push_back(range->address() + static_cast<uint64_t>(rank) * SharedSegment::kBytes);
    buffers_.push_back(std::move(range));
    write_table(device);
}

SegmentBuffers::SegmentBuffers(const vulkan::Device& device, std::vector<BufferPtr> segments)
    : buffers_(std::move(segments)) {
    for (const auto& segment : buffers_) addresses_.push_back(segment->address());
    write_table(device);
}

void SegmentBuffers::write_table(const vulkan::Device& device) {
    const uint64_t bytes = addresses_.size() * sizeof(uint64_t);
    table_ = std::make_unique<const vulkan::Buffer>(device, bytes, vulkan::MemoryKind::Ring);
    std::memcpy(table_->host(), addresses_.data(), bytes);
}

std::optional<runtime::BufferRange> SegmentBuffers::find(uint64_t address) const {
    for (const auto& buffer : buffers_) {
        const uint64_t offset = address - buffer->address();
        if (offset < buffer->bytes()) return runtime::BufferRange{buffer.get(), offset};
    }
    return std::nullopt;
}

}  // namespace anymps::distributed
