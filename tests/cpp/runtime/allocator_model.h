// What the allocator's statistics and snapshot must say, from what a test has taken of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/allocator.h"

namespace anymps::runtime {

inline uint64_t address_of(const c10::DataPtr& memory) {
    return reinterpret_cast<uint64_t>(memory.get());
}

// One statistic of the allocator, of all pools.
inline int64_t current(const c10::CachingAllocator::StatArray& stat) {
    return stat[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

// Memory that a test holds, by address. Counts what others hold when it is made, who hold it meanwhile.
class AllocatorModel {
  public:
    AllocatorModel() {
        for (const SegmentState& segment : allocator().snapshot().first)
            others_ += std::ranges::count_if(segment.blocks, &BlockState::used);
    }

    void take(size_t bytes) {
        c10::DataPtr memory = allocator().allocate(bytes);
        const uint64_t address = address_of(memory);
        const auto next = live_.lower_bound(address);
        ASSERT_TRUE(next == live_.end() || address + bytes <= next->first);
        ASSERT_TRUE(next == live_.begin() ||
                    std::prev(next)->first + std::prev(next)->second.bytes <= address);
        ASSERT_EQ(address % 64, 0u);
        live_.emplace_hint(next, address, Held{std::move(memory), bytes});
        bytes_ += bytes;
    }
    void free(size_t which) {
        const auto found = std::next(live_.begin(), static_cast<ptrdiff_t>(which));
        bytes_ -= found->second.bytes;
        live_.erase(found);
    }
    void clear() {
        live_.clear();
        bytes_ = 0;
    }
    size_t count() const { return live_.size(); }
    size_t bytes() const { return bytes_; }

    // Segments without gaps, free neighbours merged, every allocation a used block, and statistics that are
    // the sums of it all.
    void check() const {
        const auto segments = allocator().snapshot().first;
        const auto stats = allocator().getDeviceStats(0);
        Sums small, large;
        size_t found = 0, used = 0;
        for (const SegmentState& segment : segments) {
            (segment.small ? small : large).add(segment);
            uint64_t end = segment.address;
            bool was_free = false;
            for (const BlockState& block : segment.blocks) {
                ASSERT_EQ(block.address, end);
                ASSERT_GT(block.bytes, 0u);
                end += block.bytes;
                ASSERT_FALSE(was_free && !block.used) << "free neighbours";
                was_free = !block.used;
                used += block.used;
                const auto held = live_.find(block.address);
                if (held == live_.end()) continue;
                ++found;
                ASSERT_TRUE(block.used);
                ASSERT_EQ(block.requested, held->second.bytes);
                ASSERT_GE(block.bytes, block.requested);
            }
            ASSERT_EQ(end, segment.address + segment.bytes);
        }
        ASSERT_EQ(found, live_.size());
        ASSERT_EQ(used, live_.size() + others_);
        using c10::CachingAllocator::StatType;
        expect(stats, StatType::SMALL_POOL, small);
        expect(stats, StatType::LARGE_POOL, large);
        small.add(large);
        expect(stats, StatType::AGGREGATE, small);
        EXPECT_EQ(allocator().allocated_bytes(), static_cast<size_t>(small.allocated_bytes));
        EXPECT_EQ(allocator().reserved_bytes(), static_cast<size_t>(small.reserved_bytes));
    }

  private:
    struct Held {
        c10::DataPtr memory;
        size_t bytes;
    };
    struct Sums {
        int64_t allocations = 0, segments = 0, splits = 0;
        int64_t allocated_bytes = 0, reserved_bytes = 0, split_bytes = 0, requested_bytes = 0;

        void add(const SegmentState& segment) {
            ++segments;
            reserved_bytes += static_cast<int64_t>(segment.bytes);
            for (const BlockState& block : segment.blocks) {
                if (block.used) {
                    ++allocations;
                    allocated_bytes += static_cast<int64_t>(block.bytes);
                    requested_bytes += static_cast<int64_t>(block.requested);
                } else if (segment.blocks.size() > 1) {
                    ++splits;
                    split_bytes += static_cast<int64_t>(block.bytes);
                }
            }
        }
        void add(const Sums& other) {
            allocations += other.allocations;
            segments += other.segments;
            splits += other.splits;
            allocated_bytes += other.allocated_bytes;
            reserved_bytes += other.reserved_bytes;
            split_bytes += other.split_bytes;
            requested_bytes += other.requested_bytes;
        }
    };
    static void expect(const c10::CachingDeviceAllocator::DeviceStats& stats,
                       c10::CachingAllocator::StatType pool, const Sums& sums) {
        const auto of = [&](const c10::CachingAllocator::StatArray& stat) {
            const auto& s = stat[static_cast<size_t>(pool)];
            EXPECT_GE(s.peak, s.current);
            return s.current;
        };
        EXPECT_EQ(of(stats.allocation), sums.allocations);
        EXPECT_EQ(of(stats.active), sums.allocations);
        EXPECT_EQ(of(stats.segment), sums.segments);
        EXPECT_EQ(of(stats.inactive_split), sums.splits);
        EXPECT_EQ(of(stats.allocated_bytes), sums.allocated_bytes);
        EXPECT_EQ(of(stats.active_bytes), sums.allocated_bytes);
        EXPECT_EQ(of(stats.reserved_bytes), sums.reserved_bytes);
        EXPECT_EQ(of(stats.inactive_split_bytes), sums.split_bytes);
        EXPECT_EQ(of(stats.requested_bytes), sums.requested_bytes);
    }

    std::map<uint64_t, Held> live_;
    size_t bytes_ = 0;
    size_t others_ = 0;
};

}  // namespace anymps::runtime
