// Texts and errors of plans, which know no PyTorch.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>

namespace anymps::ops {

template <class... Parts>
std::string text_of(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

// "[2, 64, 9, 10]".
inline std::string list_of(std::span<const int64_t> values) {
    std::string text;
    for (const int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
    return '[' + text + ']';
}

// A RuntimeError of Python.
template <class... Parts>
void check(bool condition, const Parts&... message) {
    if (!condition) [[unlikely]]
        throw std::runtime_error(text_of(message...));
}

// Of what no call can bring about.
inline void assert_that(bool condition) {
    if (!condition) [[unlikely]]
        throw std::logic_error("convolution: a plan contradicts itself");
}

}  // namespace anymps::ops
