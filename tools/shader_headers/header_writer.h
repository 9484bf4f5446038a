// Writes what C++ knows of the shaders: FOLDER/FAMILY/NAME.h for each file shaders/FAMILY/NAME.slang, in the
// namespace anymps::shaders::NAME.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reflection.h"

namespace anymps::shader_compiler {

// Has all files' structs of modules, so that hosts pass one struct to kernels of several files. files,
// libraries: shaders with kernels, and modules by name, as paths below shaders/; each gets a header, though
// it be empty. Headers whose text does not change keep their time. Throws CompileError when two files
// disagree about a struct.
void write_headers(const std::filesystem::path& folder,
                   const std::vector<std::pair<std::filesystem::path, FileReflection>>& files,
                   const std::map<std::string, std::filesystem::path>& libraries);

}  // namespace anymps::shader_compiler
