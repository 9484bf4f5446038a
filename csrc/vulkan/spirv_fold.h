// Arithmetic of SPIR-V on integers and bools that are known when a module is specialized.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace anymps::vulkan {

// An integer of 8 to 64 bits, or a bool of width 1; the bits above width are 0.
struct ScalarValue {
    uint32_t width;
    uint64_t bits;
};

// The result of an instruction whose result has `width` bits; nothing for an opcode that is not folded and
// where SPIR-V leaves the result undefined (division by 0, shifts by the width).
std::optional<uint64_t> fold(uint32_t opcode, uint32_t width, std::span<const ScalarValue> operands);

}  // namespace anymps::vulkan
