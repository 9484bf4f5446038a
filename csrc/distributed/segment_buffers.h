// The segments of all ranks as a device sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/address_map.h"
#include "vulkan/buffer.h"

namespace anymps::distributed {

// One buffer over all segments, or one a segment. Immutable.
class SegmentBuffers {
  public:
    using BufferPtr = std::unique_ptr<const vulkan::Buffer>;

    // range: of `ranks` segments, one behind the other.
    SegmentBuffers(const vulkan::Device& device, BufferPtr range, int ranks);
    // segments: by rank.
    SegmentBuffers(const vulkan::Device& device, std::vector<BufferPtr> segments);

    int ranks() const { return static_cast<int>(addresses_.size()); }
    uint64_t address(int rank) const { return addresses_[rank]; }
    // Where kernels read address() of every rank.
    uint64_t table() const { return table_->address(); }
    // Of an address in a segment; nullopt for others.
    std::optional<runtime::BufferRange> find(uint64_t address) const;

  private:
    void write_table(const vulkan::Device& device);

    std::vector<BufferPtr> buffers_;
    std::vector<uint64_t> addresses_;
    BufferPtr table_;
};

}  // namespace anymps::distributed
