#include "runtime/dispatch_time.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "vulkan/instance.h"

namespace anymps::runtime {
namespace {

// Every workgroup of the grid once, numbered in each part as linear_group_id() numbers it.
void covers(Grid grid, double parts, size_t expected) {
    const auto cut = split_grid(grid, parts);
    EXPECT_EQ(cut.size(), expected);
    std::set<std::tuple<uint64_t, uint32_t>> numbers;
    uint64_t count = 0;
    for (const GridPart& part : cut) {
        ASSERT_GT(uint64_t{part.groups.x} * part.groups.y * part.groups.z, 0u);
        for (uint32_t z = 0; z < part.groups.z; ++z)
            for (uint32_t y = 0; y < part.groups.y; ++y)
                for (uint32_t x = 0; x < part.groups.x; ++x, ++count)
                    numbers.emplace(part.base.x + x + uint64_t{part.base.y + y} * part.groups.x,
                                    part.base.z + z);
    }
    EXPECT_EQ(count, uint64_t{grid.x} * grid.y * grid.z);
    EXPECT_EQ(numbers.size(), count);
    for (const auto& [number, z] : numbers) EXPECT_LT(number, uint64_t{grid.x} * grid.y);
}

TEST(SplitGrid, CutsTheOutermostDimensionThatNumbersSurvive) {
    covers({100, 1, 1}, 1, 1);
    covers({100, 1, 1}, 6.6, 7);
    covers({100, 1, 1}, 7, 8);  // of 14, where 15 are more than a seventh
    covers({7, 5, 1}, 2.5, 3);
    covers({7, 5, 1}, 3, 5);
    covers({7, 5, 1}, 100, 5);  // rows are never cut: x + y * (count of x) would change
    covers({3, 1, 1}, 100, 3);
    covers({1, 1, 1}, 9, 1);
    covers({4, 3, 6}, 3, 3);
    covers({4, 3, 6}, 4, 6);
    covers({4, 3, 2}, 3, 4);
    covers({4, 3, 2}, 4, 6);
    covers({5, 1, 3}, 6, 9);
    covers({300, 200, 1}, 11, 12);
}

TEST(SplitGrid, FoldedGridsHaveRowsToCut) {
    for (const uint64_t groups : {65536, 78046, 100'000, 1'000'003}) {
        const Grid grid = Grid::linear(groups);
        EXPECT_GE(uint64_t{grid.x} * grid.y, groups);
        EXPECT_LT(uint64_t{grid.x} * grid.y - groups, grid.x);  // what is past the end is in the last row
        EXPECT_GE(split_grid(grid, 44).size(), 44u);
    }
    covers(Grid::linear(65535), 44, 45);
    covers(Grid::linear(65536), 44, 45);
}

TEST(DispatchTime, IsOfBytesOrOfOperations) {
    vulkan::DeviceInfo integrated, card;
    integrated.is_integrated = true;
    const Access accesses[] = {{4096, 10'000'000'000, false}, {1ull << 40, 2'500'000'000, true}};
    EXPECT_DOUBLE_EQ(dispatch_seconds(integrated, accesses, {}), 0.5);
    EXPECT_DOUBLE_EQ(dispatch_seconds(card, accesses, {}), 0.125);
    EXPECT_DOUBLE_EQ(dispatch_seconds(integrated, accesses, {.operations = 400e9}), 1);
    EXPECT_DOUBLE_EQ(copy_seconds(integrated, 25'000'000'000), 2);
}

TEST(DispatchTime, NotesAreOfOneDispatch) {
    note_dispatch({.operations = 3, .counts_workgroups = true});
    EXPECT_EQ(take_dispatch().operations, 3);
    EXPECT_EQ(take_dispatch().operations, 0);
    EXPECT_FALSE(take_dispatch().counts_workgroups);
}

}  // namespace
}  // namespace anymps::runtime
