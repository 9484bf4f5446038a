#include "compiler/entry_points.h"

#include <cstring>
#include <stdexcept>

namespace anymps::compiler {

// For each: the bytes of its name, the name in whole words, the number of its module's words, the module.
std::vector<uint32_t> pack_entry_points(
    std::span<const std::pair<std::string, std::vector<uint32_t>>> entry_points) {
    std::vector<uint32_t> packed{static_cast<uint32_t>(entry_points.size())};
    for (const auto& [name, words] : entry_points) {
        packed.push_back(static_cast<uint32_t>(name.size()));
        const size_t at = packed.size();
        packed.resize(at + (name.size() + 3) / 4);
        std::memcpy(packed.data() + at, name.data(), name.size());
        packed.push_back(static_cast<uint32_t>(words.size()));
        packed.insert(packed.end(), words.begin(), words.end());
    }
    return packed;
}

std::vector<EntryPoint> unpack_entry_points(std::span<const uint32_t> packed) {
    const auto take = [&](size_t count) {
        if (count > packed.size()) throw std::runtime_error("The list of entry points is damaged.");
        const auto taken = packed.first(count);
        packed = packed.subspan(count);
        return taken;
    };
    std::vector<EntryPoint> result;
    for (uint32_t left = take(1)[0]; left > 0; --left) {
        const size_t bytes = take(1)[0];
        const auto name = take((bytes + 3) / 4);
        const size_t words = take(1)[0];
        result.push_back({std::string(reinterpret_cast<const char*>(name.data()), bytes), take(words)});
    }
    return result;
}

}  // namespace anymps::compiler
