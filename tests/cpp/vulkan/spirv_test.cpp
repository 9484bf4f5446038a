#include "vulkan/spirv.h"

#include <gtest/gtest.h>

namespace anymps::vulkan {
namespace {

constexpr uint32_t op(uint32_t opcode, uint32_t words) {
    return words << 16 | opcode;
}

TEST(Spirv, OnlyTheFloatControlsAreRemoved) {
    const std::vector<uint32_t> header{0x07230203, 0x00010500, 0, 10, 0};
    const std::vector<uint32_t> capability{op(17, 2), 1}, preserve{op(17, 2), 4466};
    const std::vector<uint32_t> local_size{op(16, 6), 2, 17, 8, 1, 1}, mode{op(16, 4), 2, 4461, 32};
    const std::vector<uint32_t> constant{op(43, 4), 6, 4461, 4466};
    const auto join = [](std::initializer_list<std::vector<uint32_t>> parts) {
        std::vector<uint32_t> all;
        for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
        return all;
    };
    EXPECT_EQ(without_float_controls(join({header, preserve, capability, mode, local_size, constant})),
              join({header, capability, local_size, constant}));
}

}  // namespace
}  // namespace anymps::vulkan
