#include "spirv/packed_module.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace anymps::spirv {
namespace {

using Module = std::vector<uint32_t>;

std::string packed(const Module& module) {
    std::string bytes;
    pack(module, bytes);
    return bytes;
}

// The module that the bytes give; empty where unpack() refuses.
Module unpacked(const std::string& bytes, size_t words) {
    Module module(words, 0xdeadbeef);
    const std::span span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    return unpack(span, module) ? module : Module{};
}

constexpr uint32_t op(uint32_t opcode, uint32_t words) {
    return words << 16 | opcode;
}

// Declarations, a decoration, a function with a switch and a forward reference; its ids begin at i + 1.
Module module_from(uint32_t i) {
    return {0x07230203, 0x00010500, 0,          2000,   0,          op(17, 2), 1,          op(15, 5),
            5,          i + 1,      0x6e69616d, 0,      op(71, 4),  i + 30,    1,          7,
            op(19, 2),  i + 6,      op(33, 3),  i + 7,  i + 6,      op(21, 4), i + 8,      32,
            1,          op(43, 4),  i + 8,      i + 9,  0xffffffff, op(54, 5), i + 6,      i + 1,
            0,          i + 7,      op(248, 2), i + 10, op(128, 5), i + 8,     i + 30,     i + 9,
            i + 9,      op(251, 7), i + 30,     i + 12, 0,          i + 11,    0x80000000, i + 12,
            op(248, 2), i + 11,     op(249, 2), i + 12, op(248, 2), i + 12,    op(253, 1), op(56, 1)};
}

const Module kModule = module_from(0);

TEST(PackedModule, GivesBackTheWords) {
    EXPECT_EQ(unpacked(packed(kModule), kModule.size()), kModule);
}

TEST(PackedModule, DiffersLittleWhereOnlyIdsDiffer) {
    const Module other = module_from(1000);
    const std::string one = packed(kModule), shifted = packed(other);
    ASSERT_EQ(unpacked(shifted, other.size()), other);
    // The entry point's literals and the first target, a byte more each.
    EXPECT_EQ(shifted.size(), one.size() + 2);
    EXPECT_EQ(shifted.substr(shifted.size() - 50), one.substr(one.size() - 50));
}

TEST(PackedModule, TakesInstructionsThatItDoesNotKnow) {
    std::minstd_rand random(7);
    for (int round = 0; round < 200; ++round) {
        Module module{0x07230203, 0x00010600, 40u << 16, 0xffffffff, 0};
        for (int i = 0; i < 50; ++i) {
            const uint32_t count = 1 + random() % 70;
            module.push_back(op(random() % 3 == 0 ? random() & 0xffff : random() % 300, count));
            for (uint32_t k = 1; k < count; ++k) {
                const uint32_t word = static_cast<uint32_t>(random()) * 2654435761u;
                module.push_back(random() % 2 == 0 ? word : word % 64);
            }
        }
        ASSERT_EQ(unpacked(packed(module), module.size()), module) << round;
    }
}

TEST(PackedModule, RefusesWordsThatAreNoModule) {
    std::string bytes;
    EXPECT_THROW(pack(Module{1, 2, 3}, bytes), std::invalid_argument);
    Module module = kModule;
    module.pop_back();
    module.back() = op(253, 2);
    EXPECT_THROW(pack(module, bytes), std::invalid_argument);
    module.back() = 253;
    EXPECT_THROW(pack(module, bytes), std::invalid_argument);
}

TEST(PackedModule, DamagedBytesAreRefusedOrReadWithinTheirBounds) {
    const std::string bytes = packed(kModule);
    for (size_t size = 0; size < bytes.size(); ++size) {
        EXPECT_TRUE(unpacked(bytes.substr(0, size), kModule.size()).empty()) << size;
    }
    for (size_t at = 0; at < bytes.size(); ++at) {
        for (const char with : {'\0', '\x7f', '\xff'}) {
            std::string damaged = bytes;
            damaged[at] = with;
            const Module result = unpacked(damaged, kModule.size());
            EXPECT_TRUE(result.empty() || result.size() == kModule.size());
        }
    }
}

}  // namespace
}  // namespace anymps::spirv
