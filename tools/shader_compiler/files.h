// Whole files in and out, and the content hashes that cache keys are made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace anymps::shader_compiler {

// Throws CompileError with the path when the file cannot be read.
std::string read_file(const std::filesystem::path& file);

// Writes a temporary file beside the target and renames it, so that nobody reads half a file.
void write_file(const std::filesystem::path& file, std::string_view bytes);

// FNV-1a, 64 bits, continued from `seed`.
uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 14695981039346656037ull);

// Hash of a file's contents, remembered for the life of the process; 0 for a file that is not there.
// Thread-safe.
uint64_t hash_file(const std::string& file);

}  // namespace anymps::shader_compiler
