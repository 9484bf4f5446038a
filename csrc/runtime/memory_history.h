// What the allocator has done, for PyTorch's memory viewer.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace anymps::runtime {

// Sessions of PyTorch's profiler, which alone makes c10 tell anybody of memory.
extern std::atomic<int> profiler_sessions;

// Whether this thread's profiler wants to know of memory. c10's question by itself is 30 ns.
inline bool profiler_is_told() {
    return profiler_sessions.load(std::memory_order_relaxed) != 0 && c10::memoryProfilingEnabled();
}

// Python's stack where memory was asked for; nullptr where it was not noted.
using StackContext = std::shared_ptr<c10::GatheredContext>;

struct MemoryEvent {
    const char* action;  // as torch.cuda.memory._snapshot names them: "alloc", "free_completed", ...
    uint64_t address;    // of an "oom": the bytes that were free
    size_t bytes;
    int64_t time_us;  // since the epoch
    StackContext context;
};

struct BlockState {
    uint64_t address;
    size_t bytes, requested;
    bool used;
    StackContext context;
};

struct SegmentState {
    uint64_t address;
    size_t bytes;
    bool small;
    c10::MempoolId_t pool;
    std::vector<BlockState> blocks;  // in the order of their addresses
};

// The last events. Guarded by the allocator's lock, but for enabled() and context().
class MemoryHistory {
  public:
    // Notes events from here on, the last max_entries of them; stacks: with Python's stack of each
    // allocation.
    void start(size_t max_entries, bool stacks);
    // Notes no more and forgets.
    void stop();

    bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
    // Of the caller; nullptr where stacks are not noted. Takes the GIL: call it without a lock.
    StackContext context() const {
        if (!stacks_.load(std::memory_order_relaxed)) [[likely]]
            return nullptr;
        return gather();
    }
    void add(const char* action, uint64_t address, size_t bytes) {
        if (enabled()) [[unlikely]]
            note(action, address, bytes, nullptr);
    }
    void add(const char* action, uint64_t address, size_t bytes, const StackContext& context) {
        if (enabled()) [[unlikely]]
            note(action, address, bytes, context);
    }
    const std::deque<MemoryEvent>& events() const { return events_; }

  private:
    static StackContext gather();
    void note(const char* action, uint64_t address, size_t bytes, StackContext context);

    std::atomic<bool> enabled_{false}, stacks_{false};
    size_t max_entries_ = 0;
    std::deque<MemoryEvent> events_;
};

}  // namespace anymps::runtime
