// Blocks of memory: cached, split, merged, given back, and what statistics say of it.
#include "runtime/allocator.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <latch>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "allocator_model.h"
#include "runtime/command_encoder.h"
#include "runtime/command_graph.h"

namespace anymps::runtime {
namespace {

constexpr size_t kMiB = 1 << 20;
// Larger than what other tests leave free in segments of which they still use a part.
constexpr size_t kBig = 64 * kMiB;

// Begins and ends with nothing cached.
class AllocatorTest : public ::testing::Test {
  protected:
    void SetUp() override {
        encoder().synchronize();
        allocator().emptyCache();
        reserved_ = allocator().reserved_bytes();
        allocated_ = allocator().allocated_bytes();
    }
    void TearDown() override {
        EXPECT_EQ(allocator().allocated_bytes(), allocated_);
        allocator().emptyCache();
        EXPECT_EQ(allocator().reserved_bytes(), reserved_);
    }
    // Since the test has begun.
    size_t reserved() const { return allocator().reserved_bytes() - reserved_; }
    size_t allocated() const { return allocator().allocated_bytes() - allocated_; }
    static uint64_t address_of_new(size_t bytes) { return address_of(allocator().allocate(bytes)); }
    // Whether the cache has a block for it.
    bool is_cached(size_t bytes) {
        const auto before = allocator().getDeviceStats(0).num_device_alloc;
        const auto memory = allocator().allocate(bytes);
        return allocator().getDeviceStats(0).num_device_alloc == before;
    }

  private:
    size_t reserved_ = 0, allocated_ = 0;
};

TEST_F(AllocatorTest, NothingIsANullPointer) {
    const auto memory = allocator().allocate(0);
    EXPECT_EQ(memory.get(), nullptr);
    EXPECT_EQ(memory.device(), c10::Device(c10::DeviceType::MPS, 0));
    EXPECT_EQ(reserved(), 0u);
}

TEST_F(AllocatorTest, AFreedBlockIsHandedOutAgain) {
    auto memory = allocator().allocate(kBig);
    const uint64_t address = address_of(memory);
    EXPECT_EQ(memory.device(), c10::Device(c10::DeviceType::MPS, 0));
    EXPECT_EQ(reserved(), kBig);
    EXPECT_EQ(allocated(), kBig);
    memory.clear();
    EXPECT_EQ(reserved(), kBig);
    EXPECT_EQ(allocated(), 0u);
    EXPECT_TRUE(is_cached(kBig));
    EXPECT_EQ(address_of_new(kBig), address);
    EXPECT_EQ(reserved(), kBig);
    EXPECT_FALSE(is_cached(kBig + 1));
}

TEST_F(AllocatorTest, TheSmallestBlockThatFitsIsTaken) {
    std::vector<c10::DataPtr> blocks;
    for (const size_t mib : {50, 30, 40}) blocks.push_back(allocator().allocate(mib * kMiB));
    const uint64_t forty = address_of(blocks[2]);
    blocks.clear();
    const auto memory = allocator().allocate(36 * kMiB);
    EXPECT_EQ(address_of(memory), forty);
    EXPECT_EQ(address_of_new(4 * kMiB), forty + 36 * kMiB);  // what is left of it
    EXPECT_EQ(reserved(), 120 * kMiB);
}

TEST_F(AllocatorTest, PartsOfABlockMergeInWhateverOrderTheyAreFreed) {
    const uint64_t whole = address_of_new(kBig);
    std::vector<size_t> order(16);
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937 random(4);
    for (int round = 0; round < 20; ++round) {
        std::vector<c10::DataPtr> parts;
        for (size_t i = 0; i < order.size(); ++i) {
            parts.push_back(allocator().allocate(kBig / order.size()));
            EXPECT_EQ(address_of(parts.back()), whole + i * kBig / order.size());
        }
        std::ranges::shuffle(order, random);
        for (const size_t i : order) parts[i].clear();
        EXPECT_EQ(address_of_new(kBig), whole);
        EXPECT_EQ(reserved(), kBig);
    }
}

TEST_F(AllocatorTest, BlocksOfASegmentInUseStayWhenTheCacheIsEmptied) {
    auto whole = allocator().allocate(kBig);
    whole.clear();
    auto first = allocator().allocate(kBig / 2), second = allocator().allocate(kBig / 2);
    auto other = allocator().allocate(kBig);
    other.clear();
    first.clear();
    EXPECT_EQ(reserved(), 2 * kBig);
    const auto frees = allocator().getDeviceStats(0).num_device_free;
    allocator().emptyCache();
    EXPECT_EQ(reserved(), kBig);
    EXPECT_EQ(allocator().getDeviceStats(0).num_device_free, frees + 1);
    EXPECT_TRUE(is_cached(kBig / 2));
    second.clear();
    allocator().emptyCache();
    EXPECT_EQ(reserved(), 0u);
}

TEST_F(AllocatorTest, SmallBlocksAndLargeOnesDoNotShareSegments) {
    const uint64_t large = address_of_new(kBig);
    std::vector<c10::DataPtr> many;
    for (const size_t bytes : {size_t{1}, size_t{1000}, kMiB / 2, kMiB - 1, kMiB}) {
        many.push_back(allocator().allocate(bytes));
        const uint64_t small = address_of(many.back());
        EXPECT_TRUE(small < large || small >= large + kBig) << bytes;
    }
    many.clear();
    for (int i = 0; i < 64; ++i) many.push_back(allocator().allocate(kMiB / 16));
    EXPECT_LE(reserved(), kBig + 6 * kMiB);  // 4 MiB of parts: small segments, filled
    const size_t before = reserved();
    for (int i = 0; i < 8; ++i) many.push_back(allocator().allocate(kMiB));  // the largest of them
    EXPECT_LE(reserved(), before + 8 * kMiB);
    many.clear();
    EXPECT_TRUE(is_cached(kMiB));
}

TEST_F(AllocatorTest, WhatIsTooLittleForABlockStaysWithTheOneBefore) {
    const uint64_t whole = address_of_new(kBig);
    const auto most = allocator().allocate(kBig - kMiB / 2);
    EXPECT_EQ(address_of(most), whole);
    EXPECT_EQ(allocated(), kBig);
    const auto stats = allocator().getDeviceStats(0);
    const auto small = allocator().allocate(100);
    EXPECT_EQ(allocated(), kBig + 512);
    const auto after = allocator().getDeviceStats(0);
    EXPECT_EQ(current(after.requested_bytes) - current(stats.requested_bytes), 100);
    EXPECT_EQ(current(after.allocated_bytes) - current(stats.allocated_bytes), 512);
    EXPECT_EQ(current(after.allocation) - current(stats.allocation), 1);
}

TEST_F(AllocatorTest, MemoryThatCommandsStillUseIsHandedOutInTheirOrder) {
    constexpr size_t kWords = kBig / sizeof(uint32_t);
    const auto copied = allocator().allocate(kBig);
    auto memory = allocator().allocate(kBig);
    const uint64_t address = address_of(memory);
    encoder().fill(address, 1, kBig);
    encoder().copy(address_of(copied), address, kBig);
    memory.clear();
    const auto reused = allocator().allocate(kBig);
    ASSERT_EQ(address_of(reused), address);
    encoder().fill(address, 2, kBig);
    std::vector<uint32_t> found(kWords);
    encoder().download(found.data(), address_of(copied), kBig);
    EXPECT_EQ(std::ranges::count(found, 0x01010101u), ptrdiff_t(kWords));
    encoder().download(found.data(), address, kBig);
    EXPECT_EQ(std::ranges::count(found, 0x02020202u), ptrdiff_t(kWords));
}

TEST_F(AllocatorTest, MemoryThatCommandsStillUseIsGivenBackAfterThem) {
    const auto kept = allocator().allocate(kBig);
    auto memory = allocator().allocate(kBig);
    for (int i = 0; i < 4; ++i) {
        encoder().fill(address_of(memory), 3, kBig);
        encoder().copy(address_of(kept), address_of(memory), kBig);
    }
    memory.clear();
    const auto waits = allocator().getDeviceStats(0).num_sync_all_streams;
    allocator().emptyCache();
    EXPECT_EQ(allocator().getDeviceStats(0).num_sync_all_streams, waits + 1);
    EXPECT_EQ(reserved(), kBig);
    std::vector<uint32_t> found(kBig / sizeof(uint32_t));
    encoder().download(found.data(), address_of(kept), kBig);
    EXPECT_EQ(std::ranges::count(found, 0x03030303u), ptrdiff_t(found.size()));
    allocator().emptyCache();  // nothing to free, nothing to wait for
    EXPECT_EQ(allocator().getDeviceStats(0).num_sync_all_streams, waits + 1);
}

TEST_F(AllocatorTest, PeaksAndTotalsBeginAgainWhenTheyAreReset) {
    using c10::CachingAllocator::StatType;
    const auto bytes = [] {
        return allocator().getDeviceStats(0).allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    };
    auto held = allocator().allocate(kBig);
    allocator().resetPeakStats(0);
    allocator().resetAccumulatedStats(0);
    const auto begin = bytes();
    EXPECT_EQ(begin.peak, begin.current);
    EXPECT_EQ(begin.allocated, 0);
    EXPECT_EQ(begin.freed, 0);
    EXPECT_EQ(allocator().getDeviceStats(0).num_device_alloc, 0);
    for (int i = 0; i < 3; ++i) address_of_new(2 * kBig);
    held.clear();
    const auto end = bytes();
    EXPECT_EQ(end.current, begin.current - int64_t(kBig));
    EXPECT_EQ(end.peak, begin.current + int64_t(2 * kBig));
    EXPECT_EQ(end.allocated, int64_t(6 * kBig));
    EXPECT_EQ(end.freed, int64_t(7 * kBig));
    EXPECT_EQ(allocator().getDeviceStats(0).num_device_alloc, 1);
}

TEST_F(AllocatorTest, WhatNoBufferHoldsIsRefused) {
    auto cached = allocator().allocate(1000);  // whose block must not be what is handed out
    cached.clear();
    AllocatorModel model;
    for (const size_t bytes : {size_t{1} << 46, size_t{1} << 63, std::numeric_limits<size_t>::max() - 4095,
                               std::numeric_limits<size_t>::max() - 510, std::numeric_limits<size_t>::max()})
        EXPECT_THROW(allocator().allocate(bytes), c10::Error) << bytes;
    model.check();
    EXPECT_EQ(allocated(), 0u);
}

class AllocatorLimit : public AllocatorTest {
  protected:
    ~AllocatorLimit() override {
        const char* ratio = std::getenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO");
        allocator().set_memory_fraction(ratio ? std::strtod(ratio, nullptr) : 1.7);
    }
    // Of what is reserved now and this much.
    static void limit_to(size_t more) {
        allocator().set_memory_fraction(double(allocator().reserved_bytes() + more) /
                                        double(allocator().recommended_bytes()));
    }
};

TEST_F(AllocatorLimit, BeyondItTheCacheIsFreedFirst) {
    limit_to(kBig + 4 * kMiB);
    auto cached = allocator().allocate(kBig);
    cached.clear();
    const auto before = allocator().getDeviceStats(0);
    const auto other = allocator().allocate(kBig + 2 * kMiB);
    const auto after = allocator().getDeviceStats(0);
    EXPECT_EQ(reserved(), kBig + 2 * kMiB);
    EXPECT_EQ(after.num_alloc_retries, before.num_alloc_retries + 1);
    EXPECT_EQ(after.num_device_free, before.num_device_free + 1);
    EXPECT_EQ(after.num_ooms, before.num_ooms);
}

TEST_F(AllocatorLimit, BeyondItMemoryIsOut) {
    limit_to(kBig + 4 * kMiB);
    const auto held = allocator().allocate(kBig);
    const auto before = allocator().getDeviceStats(0);
    EXPECT_THROW(allocator().allocate(kBig), c10::OutOfMemoryError);
    EXPECT_EQ(allocator().getDeviceStats(0).num_ooms, before.num_ooms + 1);
    EXPECT_EQ(reserved(), kBig);
    EXPECT_EQ(allocated(), kBig);
    limit_to(kBig + 4 * kMiB);
    EXPECT_EQ(allocator().allocate(kBig).get() != nullptr, true);
}

TEST_F(AllocatorLimit, ATinyOneIsALimitToo) {
    allocator().set_memory_fraction(1e-15);
    EXPECT_THROW(allocator().allocate(kBig), c10::OutOfMemoryError);
    allocator().set_memory_fraction(0);  // none, as on a Mac
    EXPECT_EQ(allocator().allocate(kBig).get() != nullptr, true);
    EXPECT_THROW(allocator().set_memory_fraction(-0.1), c10::Error);
    EXPECT_THROW(allocator().set_memory_fraction(2.1), c10::Error);
}

TEST_F(AllocatorTest, ASimplifiedPointerIsItsOwnContext) {
    auto memory = allocator().allocate(kBig);
    void* const address = memory.get();
    EXPECT_NE(memory.get_context(), address);
    ASSERT_TRUE(allocator().simplify(memory));
    ASSERT_TRUE(allocator().simplify(memory));  // once more
    EXPECT_EQ(memory.get(), address);
    EXPECT_EQ(memory.get_context(), address);
    EXPECT_EQ(allocated(), kBig);
    memory.clear();
    EXPECT_EQ(allocated(), 0u);
    EXPECT_EQ(address_of_new(kBig), reinterpret_cast<uint64_t>(address));
    int theirs = 0;
    c10::DataPtr foreign(&theirs, c10::Device(c10::DeviceType::MPS, 0));
    EXPECT_FALSE(allocator().simplify(foreign));
    EXPECT_EQ(foreign.get(), &theirs);
}

TEST_F(AllocatorTest, AGraphsMemoryIsItsOwnUntilItIsGone) {
    CommandGraph graph;
    graph.capture_begin({0, 0});
    const uint64_t captured = address_of_new(kBig);
    EXPECT_EQ(address_of_new(kBig), captured);  // within the capture it is handed out again
    auto longer = allocator().allocate(kBig);
    EXPECT_EQ(address_of(longer), captured);
    graph.capture_end();
    EXPECT_NE(address_of_new(kBig), captured);
    longer.clear();
    EXPECT_NE(address_of_new(kBig), captured);
    allocator().emptyCache();
    EXPECT_EQ(reserved(), kBig);  // which replays use
    {
        CommandGraph second;
        second.capture_begin(graph.pool());
        EXPECT_EQ(address_of_new(kBig), captured);
        second.capture_end();
        graph.reset();
        EXPECT_NE(address_of_new(kBig), captured);
        allocator().emptyCache();
    }
    EXPECT_EQ(address_of_new(kBig), captured);
    AllocatorModel().check();
}

TEST_F(AllocatorTest, HistoryHasTheLastEvents) {
    allocator().record_history(3, false);
    const uint64_t address = address_of_new(kBig);
    auto [segments, events] = allocator().snapshot();
    ASSERT_EQ(events.size(), 3u);
    EXPECT_STREQ(events[0].action, "free_requested");
    EXPECT_STREQ(events[1].action, "free_completed");
    EXPECT_STREQ(events[2].action, "snapshot");
    EXPECT_EQ(events[1].address, address);
    EXPECT_EQ(events[1].bytes, kBig);
    allocator().record_history(-1, false);
    address_of_new(kBig);
    EXPECT_TRUE(allocator().snapshot().second.empty());
}

TEST_F(AllocatorTest, RandomAllocationsNeverOverlapAndAddUp) {
    std::mt19937 random(5);
    AllocatorModel model;
    for (int step = 0; step < 6000; ++step) {
        // Growing and shrinking by turns, to leave all kinds of holes.
        const bool grows = random() % 8 < ((step / 500) % 2 == 0 ? 5u : 3u);
        if (grows && model.bytes() < 300 * kMiB) {
            const size_t largest[] = {512, 4096, 64 << 10, kMiB, 2 * kMiB, 11 * kMiB, 30 * kMiB};
            ASSERT_NO_FATAL_FAILURE(model.take(1 + random() % largest[random() % 7]));
        } else if (model.count() > 0) {
            model.free(random() % model.count());
        }
        if (random() % 500 == 0) allocator().emptyCache();
        if (step % 20 == 0) model.check();
        if (HasFailure()) FAIL() << "step " << step;
    }
    EXPECT_LT(allocator().reserved_bytes(), 900 * kMiB);
    model.clear();
    model.check();
}

TEST_F(AllocatorTest, ThreadsNeverHoldTheSameMemory) {
    std::mutex mutex;
    std::map<uint64_t, size_t> held;  // of all threads
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    AllocatorModel model;
    std::latch start(4);
    for (uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            start.arrive_and_wait();
            std::mt19937 random(t);
            std::vector<c10::DataPtr> mine;
            for (int step = 0; step < 20000; ++step) {
                if (mine.size() < 20 && random() % 2) {
                    const size_t bytes = 1 + random() % (random() % 4 ? 8192 : 3 * kMiB);
                    mine.push_back(allocator().allocate(bytes));
                    const uint64_t address = address_of(mine.back());
                    const std::lock_guard lock(mutex);
                    const auto next = held.lower_bound(address);
                    wrong += next != held.end() && address + bytes > next->first;
                    wrong +=
                        next != held.begin() && std::prev(next)->first + std::prev(next)->second > address;
                    held[address] = bytes;
                } else if (!mine.empty()) {
                    std::swap(mine[random() % mine.size()], mine.back());
                    {
                        const std::lock_guard lock(mutex);
                        held.erase(address_of(mine.back()));
                    }
                    mine.pop_back();
                }
                if (random() % 2048 == 0) allocator().emptyCache();
                if (random() % 64 == 0) allocator().getDeviceStats(0);
            }
            const std::lock_guard lock(mutex);
            for (const auto& memory : mine) held.erase(address_of(memory));
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    model.check();
}

}  // namespace
}  // namespace anymps::runtime
