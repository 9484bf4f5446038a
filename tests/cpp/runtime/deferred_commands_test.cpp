#include "runtime/deferred_commands.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace anymps::runtime {
namespace {

TEST(DeferredCommands, AreRecordedInTheirOrder) {
    DeferredCommands commands;
    std::vector<int> recorded;
    for (int i = 0; i < 5; ++i) commands.push(nullptr, [&recorded, i] { recorded.push_back(i); });
    EXPECT_TRUE(recorded.empty());
    commands.record_built();
    EXPECT_EQ(recorded, (std::vector<int>{0, 1, 2, 3, 4}));
    EXPECT_TRUE(commands.empty());
}

TEST(DeferredCommands, OneThatFailsIsLeftOut) {
    DeferredCommands commands;
    std::vector<int> recorded;
    commands.push(nullptr, [&] { recorded.push_back(0); });
    commands.push(nullptr, [] { throw std::runtime_error("no such kernel"); });
    commands.push(nullptr, [&] { recorded.push_back(2); });
    EXPECT_THROW(commands.record_all(), std::runtime_error);
    EXPECT_EQ(recorded, (std::vector<int>{0}));
    commands.record_all();
    EXPECT_EQ(recorded, (std::vector<int>{0, 2}));
}

TEST(DeferredCommands, AreNotKeptWithoutALimit) {
    DeferredCommands commands;
    int recorded = 0;
    for (int i = 0; i < 100000; ++i) commands.push(nullptr, [&] { ++recorded; });
    EXPECT_GT(recorded, 50000);
    commands.record_all();
    EXPECT_EQ(recorded, 100000);
}

}  // namespace
}  // namespace anymps::runtime
