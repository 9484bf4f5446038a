// The compiled and compressed kernels of one shader file, and their copy on disk from one build to the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "slang_compiler.h"

namespace anymps::shader_compiler {

struct PlacedKernel {
    std::string name;
    uint32_t frame, byte, words;  // as ArchiveKernel; frame counts within this file
};

struct Frame {
    uint32_t packed_bytes;
    std::string compressed;
};

struct CompiledFile {
    std::vector<PlacedKernel> kernels;
    std::vector<Frame> frames;
};

// Packs kernels (spirv/packed_module.h) into zstd frames of about 1 MiB; equal modules are stored once a
// frame.
CompiledFile compress(const std::vector<Kernel>& kernels);

// Entries are named by the shader's path and valid while the tool, the defines and every file that the shader
// read have the same contents.
class FrameCache {
  public:
    // tool_key: hash of everything but the shader files that decides the result.
    FrameCache(std::filesystem::path folder, uint64_t tool_key);

    std::optional<CompiledFile> find(const std::filesystem::path& shader) const;
    void store(const std::filesystem::path& shader, const std::vector<std::string>& read_files,
               const CompiledFile& compiled) const;

  private:
    std::filesystem::path entry(const std::filesystem::path& shader) const;

    std::filesystem::path folder_;
    uint64_t tool_key_;
};

}  // namespace anymps::shader_compiler
