#include "runtime/argument_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "runtime/address_map.h"
#include "runtime/allocator.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"

namespace anymps::runtime {
namespace {

constexpr uint64_t kRing = ArgumentRing::kBytes, kMaxSlice = ArgumentRing::kMaxBytes;

class ArgumentRings : public ::testing::Test {
  protected:
    ArgumentRings() {
        ArgumentRing::Slice slice;
        ring_.reserve(16, &slice);
        buffer_ = slice.buffer;
        ring_.close(1);
        ring_.reclaim(1);
    }
    ~ArgumentRings() override { unmap_buffer(*buffer_); }

    ArgumentRing::Slice reserve(uint64_t bytes) {
        ArgumentRing::Slice slice{};
        EXPECT_TRUE(ring_.reserve(bytes, &slice)) << bytes;
        return slice;
    }
    bool refuses(uint64_t bytes) {
        ArgumentRing::Slice slice{};
        return !ring_.reserve(bytes, &slice) && slice.host == nullptr;
    }
    // Reserves until the ring refuses; how many of kMaxSlice bytes there were.
    int fill() {
        int count = 0;
        for (ArgumentRing::Slice slice; ring_.reserve(kMaxSlice, &slice);) ++count;
        return count;
    }

    ArgumentRing ring_{device()};
    const vulkan::Buffer* buffer_;
};

TEST_F(ArgumentRings, SlicesAreSixteenByteAlignedPartsOfOneBuffer) {
    for (const uint64_t bytes : {1, 16, 17, 100, 4096}) {
        const auto slice = reserve(bytes);
        EXPECT_EQ(slice.address % 16, 0u);
        EXPECT_EQ(slice.buffer, buffer_);
        EXPECT_EQ(slice.address, buffer_->address() + slice.offset);
        EXPECT_EQ(slice.host, buffer_->host() + slice.offset);
        EXPECT_EQ(find_buffer(slice.address, bytes).buffer, buffer_);
        EXPECT_EQ(host_pointer(slice.address, bytes), slice.host);
    }
}

TEST_F(ArgumentRings, AFullRingRefusesUntilItsSubmissionHasCompleted) {
    const int count = fill();
    EXPECT_GE(count, int(kRing / kMaxSlice) - 1);
    EXPECT_EQ(ring_.oldest(), 0u);  // nothing to wait for yet
    ring_.close(5);
    EXPECT_EQ(ring_.oldest(), 5u);
    ring_.reclaim(4);
    EXPECT_TRUE(refuses(kMaxSlice));
    ring_.reclaim(5);
    EXPECT_EQ(ring_.oldest(), 0u);
    EXPECT_EQ(fill(), count);
}

TEST_F(ArgumentRings, ReclaimsSubmissionsInTheirOrder) {
    for (uint64_t submission = 10; submission < 14; ++submission) {
        reserve(kMaxSlice);
        ring_.close(submission);
    }
    const int before = fill();
    ring_.close(14);
    EXPECT_EQ(ring_.oldest(), 10u);
    ring_.reclaim(11);
    EXPECT_EQ(ring_.oldest(), 12u);
    EXPECT_EQ(fill(), 2);
    ring_.close(15);
    ring_.reclaim(14);
    EXPECT_EQ(ring_.oldest(), 15u);
    EXPECT_EQ(fill(), before + 2);
}

TEST_F(ArgumentRings, ASubmissionWithoutArgumentsIsNotWaitedFor) {
    ring_.close(20);
    EXPECT_EQ(ring_.oldest(), 0u);
    reserve(16);
    ring_.close(21);
    ring_.close(22);
    EXPECT_EQ(ring_.oldest(), 21u);
    ring_.reclaim(21);
    EXPECT_EQ(ring_.oldest(), 0u);
    ring_.close(23);
    EXPECT_EQ(ring_.oldest(), 0u);
}

TEST_F(ArgumentRings, WhatIsReservedLaterOutlivesAReclaim) {
    reserve(kMaxSlice);
    ring_.close(30);
    const auto open = reserve(kMaxSlice);
    ring_.reclaim(30);
    std::memset(open.host, 0x5a, kMaxSlice);
    for (ArgumentRing::Slice slice; ring_.reserve(kMaxSlice, &slice);) std::memset(slice.host, 0, kMaxSlice);
    EXPECT_EQ(open.host[0], std::byte{0x5a});
    EXPECT_EQ(open.host[kMaxSlice - 1], std::byte{0x5a});
}

TEST_F(ArgumentRings, ALargeRefusalLeavesRoomForASmallOne) {
    fill();
    int small = 0;
    for (ArgumentRing::Slice slice; ring_.reserve(1024, &slice); ++small) ASSERT_LT(small, 1000);
    EXPECT_GT(small, 0);
    ring_.close(40);
    ring_.reclaim(40);
    EXPECT_GE(fill(), int(kRing / kMaxSlice) - 1);
}

// Slices of all sizes, closed, completed and reclaimed in batches: none leaves the buffer, and none changes
// until the submission that used it has completed.
TEST_F(ArgumentRings, RandomSlicesKeepTheirBytesUntilTheyAreReclaimed) {
    struct Live {
        ArgumentRing::Slice slice;
        uint64_t bytes;
        uint64_t submission;  // 0: not closed
        std::byte mark;
    };
    std::mt19937 random(3);
    std::deque<Live> live;
    uint64_t held = 0, submission = 100, completed = 100;
    size_t refusals = 0;
    const auto reclaim = [&](uint64_t up_to) {
        while (!live.empty() && live.front().submission != 0 && live.front().submission <= up_to) {
            const Live& oldest = live.front();
            for (const uint64_t i : {uint64_t{0}, oldest.bytes / 2, oldest.bytes - 1})
                ASSERT_EQ(oldest.slice.host[i], oldest.mark);
            held -= oldest.bytes;
            live.pop_front();
        }
        ring_.reclaim(completed = up_to);
    };
    const auto close = [&] {
        ++submission;
        for (Live& each : live) {
            if (each.submission == 0) each.submission = submission;
        }
        ring_.close(submission);
    };
    for (int step = 0; step < 20000; ++step) {
        if (random() % 64 == 0) close();
        if (random() % 256 == 0) reclaim(completed + random() % (submission - completed + 1));
        const uint64_t bytes = 1 + random() % (uint64_t{1} << (random() % 19));
        ArgumentRing::Slice slice;
        while (!ring_.reserve(bytes, &slice)) {
            ++refusals;
            // Ends of the ring that were too short are all that may be lost.
            ASSERT_GT(held + 16 * live.size() + 2 * kMaxSlice + bytes, kRing);
            close();
            ASSERT_EQ(ring_.oldest(), live.front().submission);
            reclaim(ring_.oldest());
        }
        ASSERT_LE(slice.offset + bytes, kRing);
        ASSERT_EQ(slice.offset % 16, 0u);
        for (const Live& other : live) {
            ASSERT_TRUE(slice.offset + bytes <= other.slice.offset ||
                        other.slice.offset + other.bytes <= slice.offset);
        }
        const auto mark = static_cast<std::byte>(random());
        std::memset(slice.host, static_cast<int>(mark), bytes);
        live.push_back({slice, bytes, 0, mark});
        held += bytes;
    }
    EXPECT_GT(refusals, 20u);
    close();
    reclaim(submission);
    EXPECT_EQ(ring_.oldest(), 0u);
}

// More at once than the stream's ring holds.
TEST(ArgumentRingOfTheStream, UploadsBeyondItArriveWhole) {
    constexpr uint64_t kCount = 3 * kRing / kMaxSlice;
    const auto memory = allocator().allocate(kCount * kMaxSlice);
    const auto address = reinterpret_cast<uint64_t>(memory.get());
    encoder().fill(address, 0xff, kCount * kMaxSlice);
    for (uint64_t i = 0; i < kCount; ++i) {
        const std::vector<uint32_t> words(kMaxSlice / sizeof(uint32_t), static_cast<uint32_t>(i));
        encoder().upload(address + i * kMaxSlice, words.data(), kMaxSlice);
    }
    std::vector<uint32_t> found(kCount * kMaxSlice / sizeof(uint32_t));
    encoder().download(found.data(), address, kCount * kMaxSlice);
    size_t wrong = 0;
    for (uint64_t i = 0; i < found.size(); ++i) wrong += found[i] != i / (kMaxSlice / sizeof(uint32_t));
    EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace anymps::runtime
