// kernels::PipelineTable, which needs no more than Vulkan.
#include "kernels/pipeline_table.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "device_fixture.h"

namespace anymps::kernels {
namespace {

using Constants = std::vector<uint32_t>;

constexpr uint32_t op(uint32_t opcode, uint32_t words) {
    return words << 16 | opcode;
}

// A kernel that does nothing.
const std::vector<uint32_t> kModule{
    0x07230203, 0x00010500, 0,          5,          0,     // SPIR-V 1.5, ids below 5
    op(17, 2),  1,                                         // OpCapability Shader
    op(14, 3),  0,          1,                             // OpMemoryModel Logical GLSL450
    op(15, 5),  5,          1,          0x6e69616d, 0,     // OpEntryPoint GLCompute %1 "main"
    op(16, 6),  1,          17,         1,          1, 1,  // OpExecutionMode %1 LocalSize 1 1 1
    op(19, 2),  2,                                         // %2 = OpTypeVoid
    op(33, 3),  3,          2,                             // %3 = OpTypeFunction %2
    op(54, 5),  2,          1,          0,          3,     // %1 = OpFunction %2 None %3
    op(248, 2), 4,          op(253, 1), op(56, 1)};        // OpLabel, OpReturn, OpFunctionEnd

std::unique_ptr<vulkan::Pipeline> new_pipeline(const std::string& name = "nothing") {
    return std::make_unique<vulkan::Pipeline>(vulkan::test_device(), name, kModule, Constants{});
}

const vulkan::Pipeline& added(PipelineTable& table, const Constants& constants) {
    return table.find_or_create(constants, [] { return new_pipeline(); });
}

std::unique_ptr<vulkan::Pipeline> must_not_be_made() {
    ADD_FAILURE() << "made once more";
    return new_pipeline();
}

TEST(PipelineTable, HasWhatWasPutIntoIt) {
    PipelineTable table;
    EXPECT_EQ(table.find(Constants{64}), nullptr);
    EXPECT_EQ(table.find(Constants{}), nullptr);
    EXPECT_EQ(table.size(), 0u);
    const vulkan::Pipeline& first = table.find_or_create(Constants{64}, [] { return new_pipeline("first"); });
    EXPECT_EQ(first.name(), "first");
    EXPECT_EQ(table.find(Constants{64}), &first);
    EXPECT_EQ(&table.find_or_create(Constants{64}, must_not_be_made), &first);
    EXPECT_EQ(table.find(Constants{65}), nullptr);
    EXPECT_EQ(table.size(), 1u);
}

TEST(PipelineTable, KeysDifferInTheirNumberOrderAndEveryConstant) {
    PipelineTable table;
    const std::vector<Constants> keys{{},     {0},    {0, 0},       {0, 0, 0},   {1},          {1, 0},
                                      {0, 1}, {1, 2}, {2, 1},       {1, 2, 0},   {0x80000000}, {0xffffffff},
                                      {3, 3}, {3},    {0, 0, 0, 7}, {7, 0, 0, 0}};
    std::set<const vulkan::Pipeline*> distinct;
    for (const Constants& key : keys) {
        EXPECT_EQ(table.find(key), nullptr);
        distinct.insert(&added(table, key));
    }
    EXPECT_EQ(distinct.size(), keys.size());
    Constants most(32, 5);
    added(table, most);
    for (uint32_t& constant : most) {
        ++constant;
        EXPECT_EQ(table.find(most), nullptr);
        --constant;
    }
    EXPECT_NE(table.find(most), nullptr);
}

TEST(PipelineTable, AKeyIsCopied) {
    PipelineTable table;
    Constants key{1, 2, 3};
    const vulkan::Pipeline& made = added(table, key);
    key[1] = 9;
    EXPECT_EQ(table.find(key), nullptr);
    EXPECT_EQ(table.find(Constants{1, 2, 3}), &made);
}

TEST(PipelineTable, RandomCallsAreThoseOfAMap) {
    std::mt19937 random(1);
    PipelineTable table;
    std::map<Constants, const vulkan::Pipeline*> model;
    for (int step = 0; step < 4000; ++step) {
        Constants key(random() % 4);
        for (uint32_t& constant : key) constant = static_cast<uint32_t>(random() % 8) << random() % 30;
        const auto known = model.find(key);
        ASSERT_EQ(table.find(key), known == model.end() ? nullptr : known->second);
        if (random() % 2) continue;
        bool made = false;
        const vulkan::Pipeline& found = table.find_or_create(key, [&] {
            made = true;
            return new_pipeline();
        });
        ASSERT_EQ(made, known == model.end());
        if (made)
            ASSERT_TRUE(model.emplace(key, &found).second);
        else
            ASSERT_EQ(known->second, &found);
        ASSERT_EQ(table.size(), model.size());
    }
    EXPECT_GT(model.size(), 500u);
    for (const auto& [key, pipeline] : model) ASSERT_EQ(table.find(key), pipeline);
}

TEST(PipelineTable, AFailureLeavesItAsItWas) {
    PipelineTable table;
    for (uint32_t i = 0; i < 20; ++i) {
        const Constants key{i};
        EXPECT_THROW(table.find_or_create(
                         key, []() -> std::unique_ptr<vulkan::Pipeline> { throw std::runtime_error("no"); }),
                     std::runtime_error);
        EXPECT_EQ(table.find(key), nullptr);
        EXPECT_EQ(table.size(), i);
        EXPECT_EQ(table.find(key), nullptr);
        const vulkan::Pipeline& made = added(table, key);
        EXPECT_EQ(table.find(key), &made);
    }
}

// The driver compiles a pipeline when somebody waits for it, not the table.
TEST(PipelineTable, WhatItHasMayStillHaveToBeBuilt) {
    PipelineTable table;
    const Constants key{1};
    EXPECT_FALSE(added(table, key).built());
    EXPECT_FALSE(table.find(key)->built());
    added(table, {2});
    std::atomic<bool> seen{false};
    std::thread reader([&] {
        while (!table.find(key)->built()) std::this_thread::yield();
        seen = table.find(key)->handle() != VK_NULL_HANDLE;
    });
    std::thread([&] { table.find(key)->build(); }).join();
    reader.join();
    EXPECT_TRUE(seen);
    EXPECT_FALSE(table.find(Constants{2})->built());
}

// Readers see nothing or the whole entry, from its creation on always the same.
TEST(PipelineTable, ReadersGoOnWhileItGrows) {
    constexpr uint32_t kKeys = 1500;
    PipelineTable table;
    std::latch start(4);
    std::atomic<uint32_t> published{0};
    std::atomic<size_t> wrong{0}, lookups{0};
    std::vector<std::thread> readers;
    for (uint32_t t = 0; t < 3; ++t) {
        readers.emplace_back([&, t] {
            std::mt19937 random(t);
            std::vector<const vulkan::Pipeline*> seen(kKeys);
            start.arrive_and_wait();
            for (bool last = false; !last;) {
                last = published == kKeys;
                for (int i = 0; i < 64; ++i) {
                    const auto key = static_cast<uint32_t>(random() % kKeys);
                    const bool there = key < published.load();
                    const auto* found = table.find(Constants{key, ~key});
                    wrong += there && !found;
                    wrong += found && found->name() != std::to_string(key);
                    wrong += seen[key] && seen[key] != found;
                    seen[key] = found;
                    ++lookups;
                }
            }
        });
    }
    start.arrive_and_wait();
    for (uint32_t key = 0; key < kKeys; ++key) {
        table.find_or_create(Constants{key, ~key}, [&] { return new_pipeline(std::to_string(key)); });
        published = key + 1;
    }
    for (auto& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(lookups, 0u);
}

TEST(PipelineTable, ThreadsThatWantTheSameMakeItOnce) {
    constexpr uint32_t kThreads = 4, kKeys = 64;
    for (int round = 0; round < 8; ++round) {
        PipelineTable table;
        std::vector<std::atomic<int>> made(kKeys);
        std::vector<std::vector<const vulkan::Pipeline*>> got(kThreads,
                                                              std::vector<const vulkan::Pipeline*>(kKeys));
        std::latch start(kThreads);
        std::vector<std::thread> threads;
        for (uint32_t t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                start.arrive_and_wait();
                for (uint32_t i = 0; i < kKeys; ++i) {
                    const uint32_t key = t % 2 ? i : (i * 7) % kKeys;
                    const auto create = [&] {
                        ++made[key];
                        std::this_thread::yield();
                        return new_pipeline();
                    };
                    got[t][key] = &table.find_or_create(Constants{key}, create);
                }
            });
        }
        for (auto& thread : threads) thread.join();
        for (uint32_t t = 1; t < kThreads; ++t) ASSERT_EQ(got[t], got[0]);
        ASSERT_TRUE(std::ranges::all_of(made, [](const auto& count) { return count == 1; }));
        ASSERT_EQ(table.size(), kKeys);
    }
}

}  // namespace
}  // namespace anymps::kernels
