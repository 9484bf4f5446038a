#include "runtime/event.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/command_encoder.h"

namespace anymps::runtime {
namespace {

void fill_some_memory() {
    const auto memory = allocator().allocate(1 << 20);
    for (int i = 0; i < 8; ++i) encoder().fill(reinterpret_cast<uint64_t>(memory.get()), 1, 1 << 20);
}

TEST(Event, TimesGrowInTheOrderOfTheStream) {
    std::vector<std::unique_ptr<Event>> events;
    for (int i = 0; i < 100; ++i) {
        events.push_back(std::make_unique<Event>(true));
        events.back()->record();
        fill_some_memory();
    }
    for (size_t i = 1; i < events.size(); ++i) {
        EXPECT_GT(Event::elapsed_ms(*events[i - 1], *events[i]), 0);
        EXPECT_LT(Event::elapsed_ms(*events[i], *events[i - 1]), 0);
    }
    EXPECT_TRUE(events.back()->query());
}

TEST(Event, CompletesOnceItIsSynchronized) {
    Event event(false);
    EXPECT_TRUE(event.query());
    fill_some_memory();
    event.record();
    event.synchronize();
    EXPECT_TRUE(event.query());
    EXPECT_THROW(Event::elapsed_ms(event, event), c10::Error);
}

TEST(Event, SlotsAreReusedByThreads) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([] {
            for (int i = 0; i < 50; ++i) {
                Event start(true), end(true);
                start.record();
                fill_some_memory();
                end.record();
                EXPECT_GT(Event::elapsed_ms(start, end), 0);
            }
        });
    }
    for (auto& thread : threads) thread.join();
}

TEST(EventTable, NumbersAreGoodUntilTheyAreReleased) {
    auto& table = EventTable::instance();
    const uint32_t id = table.acquire(false);
    EXPECT_NE(id, 0u);
    EXPECT_TRUE(table.get(id)->query());
    table.release(id);
    table.release(id);
    EXPECT_THROW(table.get(id), c10::Error);
}

}  // namespace
}  // namespace anymps::runtime
