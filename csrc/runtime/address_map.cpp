#include "runtime/address_map.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <shared_mutex>

#include "vulkan/buffer.h"

namespace anymps::runtime {
namespace {

struct AddressMap {
    std::shared_mutex mutex;
    std::map<uint64_t, const vulkan::Buffer*> buffers;  // by first address
};

AddressMap& address_map() {
    static auto* const map = new AddressMap;
    return *map;
}

}  // namespace

void map_buffer(const vulkan::Buffer& buffer) {
    std::unique_lock lock(address_map().mutex);
    address_map().buffers[buffer.address()] = &buffer;
}

void unmap_buffer(const vulkan::Buffer& buffer) {
    std::unique_lock lock(address_map().mutex);
    address_map().buffers.erase(buffer.address());
}

BufferRange find_buffer(uint64_t address, uint64_t bytes) {
    std::shared_lock lock(address_map().mutex);
    auto next = address_map().buffers.upper_bound(address);
    TORCH_INTERNAL_ASSERT(next != address_map().buffers.begin(), "no mps buffer holds address ", address);
    const vulkan::Buffer* buffer = std::prev(next)->second;
    const uint64_t offset = address - buffer->address();
    TORCH_INTERNAL_ASSERT(offset + bytes <= buffer->bytes(), "the range of ", bytes, " bytes at offset ",
                          offset, " leaves its mps buffer of ", buffer->bytes(), " bytes");
    return {buffer, offset};
}

std::byte* host_pointer(uint64_t address, uint64_t bytes) {
    const BufferRange range = find_buffer(address, bytes);
    return range.buffer->host() ? range.buffer->host() + range.offset : nullptr;
}

}  // namespace anymps::runtime
