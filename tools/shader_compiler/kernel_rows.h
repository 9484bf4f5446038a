// What a shader's rows `//! kernel` ask for.
#pragma once

#include <string>
#include <vector>

namespace anymps::shader_compiler {

// A generic entry point with its arguments, as a kernel.
struct Instantiation {
    std::string kernel;
    std::string expression;  // entry<Arg, ...>
    std::string entry;
};

// A row asks for one kernel, or for one of each combination of values:
//
//     //! kernel NAME = entry<Arg, ...>
//     //! kernel NAME_{dtype}_{tile} = entry<{dtype}, {tile}> for dtype in f16, bf16
//     //!     for tile in 8x4=(8, 4), 16x8=(16, 8)
//
// `A=B` is A in names and B in arguments; parentheses hold several arguments. A dtype alone is its type in
// arguments: f16 is half. A line that begins with `//!` and four spaces continues the row above. Throws
// CompileError with file and line for anything else behind //!, but for `//! struct NAME`, which is for
// tools/shader_headers.
std::vector<Instantiation> kernel_rows(const std::string& source, const std::string& file);

}  // namespace anymps::shader_compiler
