// All entry points of a source, as one list of words: what caches keep.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace anymps::compiler {

struct EntryPoint {
    std::string name;
    std::span<const uint32_t> words;  // of its SPIR-V module, whose entry point is called "main"
};

// Names and SPIR-V modules as one list of words, which unpack_entry_points reads.
std::vector<uint32_t> pack_entry_points(
    std::span<const std::pair<std::string, std::vector<uint32_t>>> entry_points);

// The entry points in the order of their source; the words are views of `packed`. Throws std::runtime_error
// for words that are no such list.
std::vector<EntryPoint> unpack_entry_points(std::span<const uint32_t> packed);

}  // namespace anymps::compiler
