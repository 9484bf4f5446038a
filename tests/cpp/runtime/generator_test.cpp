#include "runtime/generator.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace anymps::runtime {
namespace {

TEST(Generator, ReservationsFollowOneAnother) {
    const auto generator = at::make_generator<MPSGeneratorImpl>(9);
    const PhiloxState first = reserve_philox(generator, 5);
    const PhiloxState second = reserve_philox(generator, 4);
    EXPECT_EQ(first.seed, 9u);
    EXPECT_EQ(first.offset, 0u);
    EXPECT_EQ(second.offset, 2u);  // five numbers take two blocks
    EXPECT_EQ(generator.get_offset(), 3u);
}

TEST(Generator, CopiesAndStatesKeepThePosition) {
    auto generator = at::make_generator<MPSGeneratorImpl>(9);
    reserve_philox(generator, 40);
    const at::Generator copy = generator.clone();
    auto restored = at::make_generator<MPSGeneratorImpl>(1);
    restored.set_state(generator.get_state());
    for (const auto& g : {copy, restored}) {
        EXPECT_EQ(g.current_seed(), 9u);
        EXPECT_EQ(g.get_offset(), 10u);
    }
    generator.set_current_seed(9);
    EXPECT_EQ(generator.get_offset(), 0u);
}

TEST(Generator, SharedSequencesAdvanceForAllThatShareThem) {
    auto generator = at::make_generator<MPSGeneratorImpl>(9);
    auto other = at::make_generator<MPSGeneratorImpl>(1);
    const at::Generator before = generator.graphsafe_get_state();
    generator.graphsafe_set_state(other);
    EXPECT_EQ(reserve_philox(generator, 8).seed, 1u);
    EXPECT_EQ(other.get_offset(), 2u);
    EXPECT_EQ(before.get_offset(), 0u);
    generator.graphsafe_set_state(before);
    EXPECT_EQ(reserve_philox(generator, 4).seed, 9u);
    EXPECT_EQ(before.get_offset(), 1u);
    EXPECT_EQ(other.get_offset(), 2u);
}

TEST(Generator, ThreadsNeverGetTheSameBlocks) {
    const auto generator = at::make_generator<MPSGeneratorImpl>(9);
    std::vector<std::vector<uint64_t>> offsets(8);
    std::vector<std::thread> threads;
    for (auto& mine : offsets) {
        threads.emplace_back([&mine, &generator] {
            for (int i = 0; i < 1000; ++i) mine.push_back(reserve_philox(generator, 4).offset);
        });
    }
    for (auto& thread : threads) thread.join();
    std::set<uint64_t> all;
    for (const auto& mine : offsets) all.insert(mine.begin(), mine.end());
    EXPECT_EQ(all.size(), 8000u);
    EXPECT_EQ(generator.get_offset(), 8000u);
}

}  // namespace
}  // namespace anymps::runtime
