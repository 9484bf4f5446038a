// Dimensions that are walked together: collapsed ones reach the same bytes as those that were given.
#include "kernels/extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace anymps::kernels {
namespace {

using Offsets = std::array<int64_t, kMaxSlots>;  // of one element, a slot each

// In the order of their numbers, the first dimension fastest.
std::vector<Offsets> every_offset(const Extents& extents) {
    std::vector<Offsets> all{Offsets{}};
    for (const Extent& extent : extents) {
        std::vector<Offsets> longer;
        for (int64_t i = 0; i < extent.size; ++i) {
            for (Offsets each : all) {
                for (size_t k = 0; k < kMaxSlots; ++k) each[k] += i * extent.stride[k];
                longer.push_back(each);
            }
        }
        all = std::move(longer);
    }
    return all;
}

std::vector<Offsets> sorted(std::vector<Offsets> offsets) {
    std::ranges::sort(offsets);
    return offsets;
}

// Of dimensions that lie in the order `inner_first`, each a slot's bytes apart.
void lay_out(Extents& extents, size_t slot, const std::vector<size_t>& inner_first, int64_t item) {
    int64_t stride = item;
    for (const size_t d : inner_first) {
        extents[d].stride[slot] = stride;
        stride *= extents[d].size;
    }
}

std::vector<size_t> numbers(size_t count) {
    std::vector<size_t> result(count);
    std::iota(result.begin(), result.end(), size_t{0});
    return result;
}

// As tensors come: dense in some order, transposed, with gaps, expanded, read backwards, or anything else.
class RandomExtents {
  public:
    explicit RandomExtents(uint32_t seed) : random_(seed) {}

    Extents next(bool inner_first) {
        Extents extents(random_() % 7);
        for (Extent& extent : extents) extent = {random_() % 40 == 0 ? 0 : 1 + int64_t(random_() % 4)};
        std::vector<size_t> order = numbers(extents.size());
        if (!inner_first) std::ranges::shuffle(order, random_);
        const size_t slots = 1 + random_() % kMaxSlots;
        const uint32_t rarely = random_() % 2 ? 8 : 100;
        for (size_t slot = 0; slot < slots; ++slot) {
            if (!inner_first && random_() % rarely == 0) std::ranges::shuffle(order, random_);
            int64_t stride = int64_t{1} << (random_() % 5);
            for (const size_t d : order) {
                extents[d].stride[slot] = stride;
                stride *= std::max<int64_t>(extents[d].size, 1);
                if (random_() % rarely == 0) stride += 16;
                if (random_() % rarely == 0) extents[d].stride[slot] = 0;
                if (random_() % (2 * rarely) == 0) extents[d].stride[slot] = int64_t(random_() % 100);
                if (random_() % (2 * rarely) == 0) extents[d].stride[slot] *= -1;
            }
        }
        return extents;
    }

  private:
    std::mt19937 random_;
};

TEST(Extents, DenseDimensionsAreOneInWhateverOrderTheyCome) {
    std::vector<size_t> order = numbers(4);
    do {
        Extents extents{{2}, {3}, {4}, {5}};
        for (size_t slot = 0; slot < kMaxSlots; ++slot) lay_out(extents, slot, order, 1 << (slot % 4));
        Extents kept = extents;
        collapse(extents);
        ASSERT_EQ(extents.size(), 1u);
        EXPECT_EQ(extents[0].size, 120);
        for (size_t slot = 0; slot < kMaxSlots; ++slot) EXPECT_EQ(extents[0].stride[slot], 1 << (slot % 4));
        collapse(kept, true);
        EXPECT_EQ(kept.size() == 1, std::ranges::is_sorted(order));
    } while (std::ranges::next_permutation(order).found);
}

TEST(Extents, OneTensorsGapKeepsDimensionsApart) {
    for (size_t slot = 0; slot < kMaxSlots; ++slot) {
        Extents extents{{4}, {3}};
        for (size_t k = 0; k < kMaxSlots; ++k) lay_out(extents, k, {0, 1}, 4);
        extents[1].stride[slot] += 4;
        const Extents before = extents;
        collapse(extents);
        ASSERT_EQ(extents.size(), 2u) << slot;
        EXPECT_EQ(every_offset(extents), every_offset(before));
    }
}

TEST(Extents, ExpandedDimensionsMergeWithEachOtherAndComeLast) {
    // {2, 3, 4, 5} of floats, of which the second and third are expanded in the first tensor.
    Extents extents{{5, {4, 4}}, {4, {0, 20}}, {3, {0, 80}}, {2, {20, 240}}};
    const auto before = sorted(every_offset(extents));
    collapse(extents);
    ASSERT_EQ(extents.size(), 3u);
    EXPECT_EQ(extents[0].size, 5);
    EXPECT_EQ(extents[1].size, 2);
    EXPECT_EQ(extents[2].size, 12);
    EXPECT_EQ(extents[2].stride[0], 0);
    EXPECT_EQ(sorted(every_offset(extents)), before);
    Extents all{{5, {0, 4}}, {4, {0, 20}}};  // one element for a whole tensor
    collapse(all);
    EXPECT_EQ(all.size(), 1u);
}

TEST(Extents, LongDimensionsDoNotWrap) {
    Extents extents{{1 << 17, {2}}, {1 << 16, {1 << 18}}, {9, {int64_t{1} << 34}}};
    collapse(extents);
    ASSERT_EQ(extents.size(), 1u);
    EXPECT_EQ(extents[0].size, int64_t{9} << 33);
    Dim dim;
    EXPECT_EQ(write_dims(extents, reinterpret_cast<char*>(&dim)), reinterpret_cast<char*>(&dim + 1));
    EXPECT_EQ(uint64_t{dim.size_high} << 32 | dim.size.divisor, uint64_t{9} << 33);
    Extents gap{{1 << 16, {1}}, {2, {0}}};  // 2^32 elements on, which 32 bits hold as 0
    gap[1].stride[0] = int64_t{1} << 32 | 1 << 16;
    collapse(gap);
    EXPECT_EQ(gap.size(), 2u);
}

TEST(Extents, NothingCollapsesToNothing) {
    Extents extents;
    collapse(extents);
    EXPECT_TRUE(extents.empty());
}

TEST(Extents, CollapsedOnesReachTheSameElements) {
    RandomExtents shapes(1);
    size_t merged = 0, kept = 0;
    for (int round = 0; round < 4000; ++round) {
        const Extents before = shapes.next(false);
        Extents after = before;
        collapse(after);
        ASSERT_EQ(sorted(every_offset(after)), sorted(every_offset(before))) << "round " << round;
        for (size_t i = 1; i < after.size(); ++i) {
            ASSERT_FALSE(after[i].continues(after[i - 1])) << "round " << round;
            const int64_t inner = after[i - 1].stride[0], outer = after[i].stride[0];
            ASSERT_TRUE(outer == 0 || (inner != 0 && inner <= outer)) << "round " << round;
        }
        merged += after.size() < before.size();
        kept += after.size() > 1;
    }
    EXPECT_GT(merged, 1000u);
    EXPECT_GT(kept, 1000u);
}

// Reductions with indices count elements in this order.
TEST(Extents, ThoseInOrderReachTheSameElementsInTheSameOrder) {
    RandomExtents shapes(2);
    size_t merged = 0;
    for (int round = 0; round < 4000; ++round) {
        const Extents before = shapes.next(round % 2 == 0);
        Extents after = before;
        collapse(after, true);
        ASSERT_EQ(every_offset(after), every_offset(before)) << "round " << round;
        for (size_t i = 1; i < after.size(); ++i)
            ASSERT_FALSE(after[i].continues(after[i - 1])) << "round " << round;
        merged += after.size() < before.size();
    }
    EXPECT_GT(merged, 1000u);
}

// What kernels read leads them where the extents say: by the formula of shaders/lib/geometry.slang.
TEST(Extents, WrittenDimensionsAreThoseOfTheExtents) {
    const auto divide = [](const auto& by, uint32_t n) {
        const auto t = static_cast<uint32_t>((uint64_t{n} * by.magic) >> 32);
        const uint32_t first = std::min(by.shift, 1u);
        return (t + ((n - t) >> first)) >> (by.shift - first);
    };
    RandomExtents shapes(3);
    for (int round = 0; round < 1000; ++round) {
        const Extents extents = shapes.next(false);
        std::vector<Dim> dims(extents.size() + 1);
        char* const begin = reinterpret_cast<char*>(dims.data());
        ASSERT_EQ(write_dims(extents, begin), begin + extents.size() * sizeof(Dim));
        const auto offsets = every_offset(extents);
        for (uint32_t i = 0; i < offsets.size(); ++i) {
            Offsets reached{};
            uint32_t rest = i;
            for (size_t d = 0; d < extents.size(); ++d) {
                ASSERT_EQ(dims[d].size_high, 0u);
                const uint32_t outer = divide(dims[d].size, rest);
                for (size_t k = 0; k < kMaxSlots; ++k)
                    reached[k] += int64_t{rest - outer * dims[d].size.divisor} * dims[d].stride[k];
                rest = outer;
            }
            ASSERT_EQ(reached, offsets[i]) << "round " << round << ", element " << i;
        }
    }
}

// Groups of four elements along the first dimension, whose size has whole ones.
TEST(Extents, VectorsAreAlignedWhereverTheyStart) {
    std::mt19937 random(4);
    size_t count[2] = {};
    for (int round = 0; round < 4000; ++round) {
        const int64_t item = int64_t{1} << (random() % 4);
        const size_t slot = random() % kMaxSlots;
        const auto stride = [&] { return int64_t(random() % 9) * item * (random() % 4 ? 4 : 1); };
        Extents along{{8}, {2}}, others{{2}, {3}};
        along[0].stride[slot] = random() % 8 ? item : stride();
        along[1].stride[slot] = stride();
        for (Extent& other : others) other.stride[slot] = stride();
        const uint64_t address = 4096 + random() % 5 * static_cast<uint64_t>(random() % 4 ? 16 : item);
        const uint64_t alignment = static_cast<uint64_t>(std::min<int64_t>(16, 4 * item));
        Extents groups = along;
        groups[0].size = 2;
        groups[0].stride[slot] *= 4;
        groups.append(others.begin(), others.end());
        const bool aligned = along[0].stride[slot] == item &&
                             std::ranges::all_of(every_offset(groups), [&](const Offsets& offset) {
                                 return (address + static_cast<uint64_t>(offset[slot])) % alignment == 0;
                             });
        ASSERT_EQ(vector_aligned(address, item, slot, along, others), aligned) << "round " << round;
        ++count[aligned];
    }
    EXPECT_GT(count[false], 500u);
    EXPECT_GT(count[true], 500u);
}

}  // namespace
}  // namespace anymps::kernels
