// Writes what C++ knows of the shaders: FOLDER/NAME.h for each shader file and FOLDER/lib/NAME.h for each of
// shaders/lib, in the namespaces anymps::shaders::NAME and anymps::shaders::lib::NAME.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "reflection.h"

namespace anymps::shader_compiler {

// Has all files' structs of shaders/lib, so that hosts pass one struct to kernels of several files.
// libraries: stems of all files of shaders/lib; each gets a header, though it be empty. Headers whose text
// does not change keep their time. Throws CompileError when two files disagree about a struct.
void write_headers(const std::filesystem::path& folder,
                   const std::vector<std::pair<std::filesystem::path, FileReflection>>& files,
                   const std::vector<std::string>& libraries);

}  // namespace anymps::shader_compiler
