#include "runtime/zeroed_words.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "runtime/address_map.h"
#include "runtime/command_encoder.h"
#include "runtime/command_graph.h"
#include "runtime/device.h"
#include "vulkan/buffer.h"

namespace anymps::runtime {
namespace {

// A fill for each taker is a command more, for which the next one waits: 5 to 10 us of a convolution on an
// H200.
constexpr uint64_t kChunkSlots = ZeroedWords::kMaxSlots;
constexpr uint64_t kChunkBytes = kChunkSlots * ZeroedWords::kSlotBytes;

using Chunk = std::shared_ptr<const vulkan::Buffer>;

// Chunks are neither tensors nor ever freed, so that the allocator's statistics know nothing of them.
struct Pool {
    std::mutex mutex;
    std::vector<Chunk> chunks;
    Chunk current;
    uint64_t used = kChunkSlots;
};

// One that nobody else has: what is recorded from now on comes after all uses of its slots.
Chunk unused_chunk(std::vector<Chunk>& chunks) {
    const auto found =
        std::find_if(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.use_count() == 1; });
    if (found != chunks.end()) return *found;
    auto chunk = std::make_shared<vulkan::Buffer>(device(), kChunkBytes, vulkan::MemoryKind::Device);
    chunks.push_back(chunk);
    map_buffer(chunk);
    return chunk;
}

}  // namespace

ZeroedWords::ZeroedWords(uint64_t slots) {
    TORCH_INTERNAL_ASSERT(slots > 0 && slots <= kChunkSlots);
    if (CommandGraph* graph = capturing()) {  // zeros in every replay; the graph keeps them
        address_ = graph->zeroed_words(slots);
        return;
    }
    CommandEncoder& commands = encoder();  // raises in a forked child, whose mutex may be locked
    static Pool& pool = *new Pool;         // the device may be gone before a static object is destroyed
    std::lock_guard lock(pool.mutex);
    if (pool.used + slots > kChunkSlots) {
        pool.used = kChunkSlots;
        pool.current.reset();
        pool.current = unused_chunk(pool.chunks);
        commands.fill(pool.current->address(), 0, kChunkBytes);
        pool.used = 0;
    }
    chunk_ = pool.current;
    address_ = chunk_->address() + pool.used * kSlotBytes;
    pool.used += slots;
}

const ZeroedWords& ZeroedWords::leaked(uint64_t slots) {
    const OutsideCapture outside;
    return *new ZeroedWords(slots);
}

}  // namespace anymps::runtime
