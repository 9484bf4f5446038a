// What torch.accelerator asks of the host's memory: it is the CPU's, of which nothing is cached.
#include "runtime/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

namespace anymps::runtime {
namespace {

// The blocks that are called pinned, by address, and their bytes.
struct PinnedBlocks {
    std::mutex mutex;
    std::map<uintptr_t, size_t> bytes;

    // Leaked: tensors may die while static objects are destroyed.
    static PinnedBlocks& instance() {
        static auto* blocks = new PinnedBlocks;
        return *blocks;
    }
};

void release_pinned(void* block) {
    {
        auto& blocks = PinnedBlocks::instance();
        const std::lock_guard lock(blocks.mutex);
        blocks.bytes.erase(reinterpret_cast<uintptr_t>(block));
    }
    c10::GetCPUAllocator()->raw_deallocate(block);
}

class PinnedAllocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t bytes) override {
        if (bytes == 0) return c10::GetCPUAllocator()->allocate(0);
        void* block = c10::GetCPUAllocator()->raw_allocate(bytes);
        auto& blocks = PinnedBlocks::instance();
        const std::lock_guard lock(blocks.mutex);
        blocks.bytes[reinterpret_cast<uintptr_t>(block)] = bytes;
        return {block, block, &release_pinned, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

class HostAllocator final : public at::HostAllocator {
  public:
    at::DataPtr allocate(size_t bytes) override { return c10::GetCPUAllocator()->allocate(bytes); }
    c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
    bool record_event(void*, void*, c10::Stream) override { return false; }
    void empty_cache() override {}
    at::HostStats get_stats() override { return {}; }
    void reset_accumulated_stats() override {}
    void reset_peak_stats() override {}
};

struct RegisterHostAllocator {
    RegisterHostAllocator() { at::setHostAllocator(c10::DeviceType::MPS, new HostAllocator, 0); }
} register_host_allocator;

}  // namespace

c10::Allocator* pinned_allocator() {
    static auto* allocator = new PinnedAllocator;
    return allocator;
}

bool is_pinned(const void* data) {
    auto& blocks = PinnedBlocks::instance();
    const std::lock_guard lock(blocks.mutex);
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto next = blocks.bytes.upper_bound(address);
    if (next == blocks.bytes.begin()) return false;
    --next;
    return address < next->first + next->second;
}

}  // namespace anymps::runtime
