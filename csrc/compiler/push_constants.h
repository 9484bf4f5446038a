// How much a kernel wants pushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace anymps::compiler {

// Bytes of the module's push constants, 0 where it has none. Throws std::runtime_error for a damaged module.
size_t push_constant_bytes(std::span<const uint32_t> words);

}  // namespace anymps::compiler
