// The host's FastDivider; the kernels' is tested in kernels/geometry_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/geometry.h"

namespace anymps::kernels {
namespace {

TEST(FastDivider, IsExactForEveryKindOf32BitNumber) {
    std::mt19937 random(1);
    const auto number = [&] { return static_cast<uint32_t>(random()); };
    std::vector<uint32_t> divisors{1,          2,          3,          5,          7,
                                   64,         641,        65535,      65536,      65537,
                                   0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff};
    for (uint32_t bit = 0; bit < 32; ++bit) divisors.push_back(1u << bit);
    while (divisors.size() < 2000) divisors.push_back(std::max<uint32_t>(number() >> (number() % 32), 1));
    for (const uint32_t divisor : divisors) {
        const FastDivider divider(divisor);
        ASSERT_EQ(divider.divisor, divisor);
        std::vector<uint32_t> dividends{0, 1, 2, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
        for (int i = 0; i < 200; ++i) {
            const auto multiple = static_cast<uint32_t>(divisor * (number() % (0xffffffffull / divisor + 1)));
            dividends.insert(dividends.end(), {number(), multiple - 1, multiple, multiple + 1});
        }
        for (const uint32_t n : dividends) ASSERT_EQ(divider.divide(n), n / divisor) << n << " / " << divisor;
    }
}

TEST(FastDivider, OfAnEmptyDimensionDividesByOne) {
    for (const uint32_t n : {0u, 1u, 12345u, 0xffffffffu}) {
        EXPECT_EQ(FastDivider(0).divide(n), n);
        EXPECT_EQ(FastDivider().divide(n), n);
    }
}

}  // namespace
}  // namespace anymps::kernels
