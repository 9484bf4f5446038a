// The caching allocator of the mps device, as torch.accelerator.memory_* and torch.mps see it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/memory_history.h"

namespace anymps::runtime {

// Thread-safe. One in-order stream: a freed block may be handed out at once, since whatever still reads it
// was recorded earlier. Data pointers are device addresses. Lives until the process ends.
class Allocator final : public c10::DeviceAllocator {
  public:
    Allocator();

    // bytes == 0 gives a null pointer on the device. Raises torch.OutOfMemoryError, after the cache was freed
    // and the driver asked once more; RuntimeError for more than the driver can have in one buffer.
    c10::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void* dst, const void* src, size_t bytes) const override;
    // Makes a pointer of this allocator its own context, as c10's copy-on-write storages need it. False for
    // memory from elsewhere, which stays as it is.
    bool simplify(c10::DataPtr& pointer);

    bool initialized() override;
    void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
    void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
    void resetAccumulatedStats(c10::DeviceIndex device) override;
    void resetPeakStats(c10::DeviceIndex device) override;
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;  // {free, total} bytes

    size_t max_allocation_bytes() const;  // that the driver promises in one piece
    size_t allocated_bytes() const;       // in tensors
    size_t reserved_bytes() const;        // taken from the driver
    // What programs should stay under: half of unified memory, 95 % of a card's own.
    size_t recommended_bytes() const;
    // A pool for the allocations of a capture: the one of this id, or a new one for {0, 0}. What is freed in
    // it is handed out to captures of the same pool only, until release_pool() was called as often as this;
    // then its memory is everybody's.
    c10::MempoolId_t retain_pool(c10::MempoolId_t id);
    void release_pool(c10::MempoolId_t id);
    // Notes what is done from here on, for snapshot(): the last max_entries events; -1 stops.
    void record_history(int64_t max_entries, bool stacks);
    // What is where, and the events noted so far.
    std::pair<std::vector<SegmentState>, std::vector<MemoryEvent>> snapshot();
    // What is called before memory is taken or counted, without a lock of ours: lets go of what is held for
    // others without need. At most one, which stays.
    void set_let_go(void (*let_go)()) { let_go_ = let_go; }
    // Limits reserved_bytes to fraction * recommended_bytes(); 0 < fraction <= 2.
    void set_memory_fraction(double fraction);

  private:
    struct Segment;
    struct Block;
    struct SplitChange;
    struct BySize {
        bool operator()(const Block* a, const Block* b) const;
    };
    using Pool = std::set<Block*, BySize>;
    struct Pools {
        Pool small, large;  // free blocks
    };
    struct PrivatePool : Pools {
        size_t users = 0;
    };

    // The totals that PyTorch's profiler is told.
    struct Totals {
        size_t allocated, reserved;
    };

    void let_go() const {
        if (const auto call = let_go_.load(std::memory_order_relaxed)) call();
    }
    static void delete_block(void* block);
    static void delete_address(void* address);
    Block* take(size_t rounded, size_t requested, PrivatePool* owner);
    Block* new_segment(size_t rounded, size_t requested, PrivatePool* owner);
    Block* split(Block* block, size_t bytes);
    void release(Block* block);
    static void release_and_report(Block* block, void* address);
    void free_cached_segments();
    void count(Block* block, bool allocate);
    void count_inactive_split(const Segment& segment, const SplitChange& by);
    Totals totals() const;
    std::array<c10::CachingAllocator::StatArray*, 9> all_stats();
    size_t limit_bytes() const;
    [[noreturn]] void raise_out_of_memory(size_t requested);
    Pool& pool_of(const Segment& segment);

    mutable std::mutex mutex_;
    std::atomic<void (*)()> let_go_{nullptr};
    Pools shared_;
    std::map<c10::MempoolId_t, PrivatePool> private_;
    c10::CaptureId_t next_pool_ = 1;
    std::vector<std::unique_ptr<Segment>> segments_;
    std::unordered_map<void*, Block*> simplified_;  // by address
    c10::CachingDeviceAllocator::DeviceStats stats_;
    MemoryHistory history_;
    mutable std::optional<double> fraction_;  // of recommended_bytes(); 0 for no limit
};

Allocator& allocator();

}  // namespace anymps::runtime
