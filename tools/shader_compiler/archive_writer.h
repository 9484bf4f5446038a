// Writes kernels.bin (csrc/kernels/kernel_archive.h).
#pragma once

#include <filesystem>
#include <vector>

#include "frame_cache.h"

namespace anymps::shader_compiler {

struct ShaderFile {
    std::filesystem::path path;
    CompiledFile compiled;
};

// Throws CompileError when two files (or one) have kernels of the same name.
void write_archive(const std::filesystem::path& output, const std::vector<ShaderFile>& files);

}  // namespace anymps::shader_compiler
