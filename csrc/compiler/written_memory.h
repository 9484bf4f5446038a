// Which of a kernel's parameters point to memory that it writes.
#pragma once

#include <cstdint>
#include <span>

namespace anymps::compiler {

// Bit i: memory may be written through member i of the push constants, as far as an address that is computed
// from it goes. All bits for a module with more than 64 members. words: of a module that push_constants() has
// read.
uint64_t written_parameters(std::span<const uint32_t> words);

}  // namespace anymps::compiler
