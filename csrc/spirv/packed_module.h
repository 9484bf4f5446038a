// SPIR-V modules as bytes that compress well: the kernels' archive keeps them so.
//
// A module's header, then its instructions: opcode, count of words, operands, each a number of 7 bits a byte,
// low ones first. Modules of one shader differ in little but the numbers of their ids, so no id stands there
// as itself: a result is the distance from the result before; an operand that names what was declared outside
// functions is its rank among those, any other is its distance from the last result. zstd makes a fifth of it
// that it makes of the words.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "spirv/opcodes.h"

namespace anymps::spirv {

// Appends a module to `bytes`. Throws std::invalid_argument where its instructions do not end where the words
// end.
void pack(Words module, std::string& bytes);

// Fills `module` from the beginning of `bytes`. False where that is not what pack() wrote for so many words.
bool unpack(std::span<const uint8_t> bytes, std::span<uint32_t> module);

}  // namespace anymps::spirv
