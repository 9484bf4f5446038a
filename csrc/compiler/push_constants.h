// What a kernel wants pushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace anymps::compiler {

// Bytes of the module's push constants, 0 where it has none. Throws std::runtime_error for a damaged module.
size_t push_constant_bytes(std::span<const uint32_t> words);

enum class ScalarKind { other, sint, uint, floating };

// One uniform parameter of an entry point: an address, or numbers of one type behind one another.
struct PushConstant {
    size_t offset, bytes;
    bool is_address;
    ScalarKind
        kind;  // of its numbers, or of those in the memory that it points to; other: structs and the like
    uint32_t bits;  // of such a number
    bool is_bfloat;
};

// The parameters in their order. A module that has one struct for all of them, as Slang writes it; throws
// std::runtime_error for others.
std::vector<PushConstant> push_constants(std::span<const uint32_t> words);

}  // namespace anymps::compiler
