// A barrier comes where a command touches what one since the last barrier wrote, or writes what it read.
#include "runtime/hazards.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

namespace anymps::runtime {
namespace {

constexpr size_t kFewAccesses = 32;  // as long as there are no more, no barrier comes without need

Access reads(uint64_t address, uint64_t bytes) {
    return {address, bytes, false};
}

Access writes(uint64_t address, uint64_t bytes) {
    return {address, bytes, true};
}

bool add(Hazards& hazards, std::initializer_list<Access> accesses) {
    return hazards.add({accesses.begin(), accesses.size()});
}

// What was touched since the last barrier, byte by byte.
class ByteHazards {
  public:
    static constexpr size_t kBytes = 96;

    bool need_barrier(const std::vector<Access>& accesses) const {
        for (const Access& access : accesses) {
            for (uint64_t b = access.address; b < access.address + access.bytes; ++b) {
                if (written_[b] || (access.write && read_[b])) return true;
            }
        }
        return false;
    }
    void note(const std::vector<Access>& accesses) {
        count_ += accesses.size();
        for (const Access& access : accesses) {
            auto& touched = access.write ? written_ : read_;
            for (uint64_t b = access.address; b < access.address + access.bytes; ++b) touched[b] = true;
        }
    }
    size_t count() const { return count_; }

  private:
    std::array<bool, kBytes> read_{}, written_{};
    size_t count_ = 0;
};

TEST(Hazards, OnlyReadsAfterReadsGoWithoutABarrier) {
    const Access read = reads(1000, 64), write = writes(1000, 64);
    for (const Access& before : {read, write}) {
        for (const Access& after : {read, write}) {
            Hazards hazards;
            EXPECT_FALSE(add(hazards, {before}));
            EXPECT_EQ(add(hazards, {after}), before.write || after.write);
        }
    }
}

TEST(Hazards, RangesMeetInOneByte) {
    for (const auto& [address, bytes, meets] :
         std::vector<std::tuple<uint64_t, uint64_t, bool>>{{900, 100, false},
                                                           {900, 101, true},
                                                           {1063, 1, true},
                                                           {1064, 1, false},
                                                           {1010, 4, true},
                                                           {0, 5000, true}}) {
        Hazards hazards;
        add(hazards, {writes(1000, 64)});
        EXPECT_EQ(add(hazards, {reads(address, bytes)}), meets) << address << " + " << bytes;
    }
}

TEST(Hazards, AddressesAndSizesHave64Bits) {
    constexpr uint64_t kBase = 0x7fff'0000'0000, kLong = 5ull << 30;
    Hazards hazards;
    EXPECT_FALSE(add(hazards, {writes(kBase, kLong)}));
    EXPECT_FALSE(add(hazards, {writes(kBase + (1ull << 33), 16)}));
    EXPECT_FALSE(add(hazards, {reads(kBase + kLong, 16)}));
    EXPECT_TRUE(add(hazards, {reads(kBase + kLong - 1, 1)}));
}

TEST(Hazards, ACommandDoesNotWaitForItself) {
    Hazards hazards;
    EXPECT_FALSE(add(hazards, {reads(1000, 64), writes(1000, 64)}));
    EXPECT_TRUE(add(hazards, {reads(1000, 64), writes(1000, 64)}));
}

TEST(Hazards, EveryAccessOfACommandCounts) {
    for (size_t at = 0; at < 5; ++at) {
        Hazards hazards;
        std::vector<Access> before, after;
        for (uint64_t i = 0; i < 5; ++i) before.push_back(writes(1000 * i, 8));
        for (uint64_t i = 0; i < 5; ++i) after.push_back(reads(1000 * i + (i == at ? 0 : 500), 8));
        EXPECT_FALSE(hazards.add(before));
        EXPECT_TRUE(hazards.add(after)) << at;
    }
}

TEST(Hazards, ABarrierEndsWhatWasBeforeAndNotItsOwnCommand) {
    Hazards hazards;
    EXPECT_FALSE(add(hazards, {writes(0, 8), writes(100, 8)}));
    EXPECT_TRUE(add(hazards, {reads(0, 8), writes(200, 8)}));
    EXPECT_FALSE(add(hazards, {reads(100, 8)}));
    EXPECT_TRUE(add(hazards, {writes(200, 8)}));
    EXPECT_FALSE(add(hazards, {writes(0, 8), writes(100, 8)}));
}

TEST(Hazards, ClearingIsABarrierOfTheCaller) {
    Hazards hazards;
    add(hazards, {writes(0, 8)});
    hazards.clear();
    EXPECT_FALSE(add(hazards, {reads(0, 8)}));
}

TEST(Hazards, NothingIsNeitherReadNorWritten) {
    Hazards hazards;
    EXPECT_FALSE(add(hazards, {writes(0, 0), writes(1000, 0), writes(1000, 8)}));
    EXPECT_FALSE(add(hazards, {}));
    EXPECT_FALSE(add(hazards, {writes(0, 0), writes(1000, 0), writes(1008, 0)}));
    EXPECT_TRUE(add(hazards, {writes(1000, 8)}));
}

// However many come, nothing is forgotten but by a barrier.
TEST(Hazards, ManyAccessesAreKeptInMind) {
    for (uint64_t count : {47, 48, 49, 100, 1000}) {
        Hazards hazards;
        uint64_t since = 0;  // the first command after the last barrier
        for (uint64_t i = 0; i < count; ++i) {
            if (add(hazards, {writes(i * 64, 64)})) since = i;
        }
        EXPECT_LT(count - since, count < kFewAccesses ? 1 : 200);
        EXPECT_TRUE(add(hazards, {reads(since * 64, 64)})) << count;
    }
    Hazards hazards;
    std::vector<Access> one_command;
    for (uint64_t i = 0; i < 1000; ++i) one_command.push_back(writes(i * 64, 64));
    hazards.add(one_command);
    EXPECT_TRUE(add(hazards, {reads(0, 1)}));
    hazards.clear();
    hazards.add(one_command);
    EXPECT_TRUE(add(hazards, {reads(999 * 64, 1)}));
}

TEST(Hazards, RandomCommandsAreOrderedLikeTheirBytes) {
    std::mt19937 random(1);
    size_t needed = 0, needless = 0;
    for (int round = 0; round < 400; ++round) {
        // From a few large ranges, which meet at once, to many small ones, which rarely do.
        const uint64_t longest = 1 + random() % 12, writers = 1 + random() % 8;
        Hazards hazards;
        ByteHazards model;
        for (int command = 0; command < 100; ++command) {
            std::vector<Access> accesses;
            for (size_t count = random() % 5; count > 0; --count) {
                const uint64_t bytes = 1 + random() % longest;
                accesses.push_back(
                    {random() % (ByteHazards::kBytes - bytes + 1), bytes, random() % writers == 0});
            }
            const bool barrier = hazards.add(accesses), needs = model.need_barrier(accesses);
            needed += needs;
            ASSERT_TRUE(barrier || !needs) << "round " << round << ", command " << command;
            if (barrier && !needs) {
                ++needless;
                ASSERT_GT(model.count() + accesses.size(), kFewAccesses);
            }
            if (barrier) model = {};
            model.note(accesses);
        }
    }
    EXPECT_GT(needed, 1000u);
    EXPECT_LT(needless, needed / 4);
}

// The same from the other side: no two commands between two barriers of which one writes what the other
// touches.
TEST(Hazards, NoTwoCommandsBetweenBarriersMeet) {
    std::mt19937 random(2);
    Hazards hazards;
    std::vector<std::vector<Access>> batch;
    size_t barriers = 0;
    for (int command = 0; command < 20000; ++command) {
        std::vector<Access> accesses;
        for (size_t count = 1 + random() % 3; count > 0; --count) {
            accesses.push_back(
                {(uint64_t{1} << 44) + random() % 4096 * 512, 1 + random() % 2048, random() % 3 == 0});
        }
        if (hazards.add(accesses)) {
            batch.clear();
            ++barriers;
        }
        for (const auto& earlier : batch) {
            for (const Access& a : earlier) {
                for (const Access& b : accesses) {
                    const uint64_t first = std::max(a.address, b.address);
                    const uint64_t end = std::min(a.address + a.bytes, b.address + b.bytes);
                    ASSERT_FALSE((a.write || b.write) && first < end) << "command " << command;
                }
            }
        }
        batch.push_back(std::move(accesses));
    }
    EXPECT_GT(barriers, 100u);
    EXPECT_LT(barriers, 5000u);
}

}  // namespace
}  // namespace anymps::runtime
