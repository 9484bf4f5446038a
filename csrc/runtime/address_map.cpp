#include "runtime/address_map.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "vulkan/buffer.h"

namespace anymps::runtime {
namespace {

struct AddressMap {
    std::shared_mutex mutex;
    std::map<uint64_t, std::shared_ptr<const vulkan::Buffer>> buffers;  // by first address
};

AddressMap& address_map() {
    static auto* const map = new AddressMap;
    return *map;
}

}  // namespace

void map_buffer(std::shared_ptr<const vulkan::Buffer> buffer) {
    std::unique_lock lock(address_map().mutex);
    const uint64_t address = buffer->address();
    address_map().buffers[address] = std::move(buffer);
}

void unmap_buffer(const vulkan::Buffer& buffer) {
    std::unique_lock lock(address_map().mutex);
    const auto entry = address_map().buffers.extract(buffer.address());  // freed after the lock is gone
    lock.unlock();
}

BufferRange find_buffer(uint64_t address, uint64_t bytes) {
    std::shared_lock lock(address_map().mutex);
    auto next = address_map().buffers.upper_bound(address);
    TORCH_INTERNAL_ASSERT(next != address_map().buffers.begin(), "no mps buffer holds address ", address);
    const vulkan::Buffer* buffer = std::prev(next)->second.get();
    const uint64_t offset = address - buffer->address();
    TORCH_INTERNAL_ASSERT(offset + bytes <= buffer->bytes(), "the range of ", bytes, " bytes at offset ",
                          offset, " leaves its mps buffer of ", buffer->bytes(), " bytes");
    return {buffer, offset};
}

std::shared_ptr<const vulkan::Buffer> share_buffer(uint64_t address) {
    std::shared_lock lock(address_map().mutex);
    const auto next = address_map().buffers.upper_bound(address);
    if (next == address_map().buffers.begin()) return nullptr;
    const auto& buffer = std::prev(next)->second;
    return address < buffer->address() + buffer->bytes() ? buffer : nullptr;
}

std::byte* host_pointer(uint64_t address, uint64_t bytes) {
    const BufferRange range = find_buffer(address, bytes);
    return range.buffer->host() ? range.buffer->host() + range.offset : nullptr;
}

}  // namespace anymps::runtime
