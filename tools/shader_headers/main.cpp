// Writes the C++ headers of all shaders. A program of its own: the shader compiler's cache is valid for one
// build of it, and a change of what headers look like compiles no kernel again.
#include <cstdio>

#include "header_writer.h"

namespace anymps::shader_compiler {

namespace {

constexpr const char* kUsage = "usage: shader_headers --include DIR --output DIR SHADER...\n";

int run(int count, char** values) {
    std::filesystem::path include, output;
    std::vector<std::filesystem::path> shaders;
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        if ((name == "--include" || name == "--output") && i + 1 < count)
            (name == "--include" ? include : output) = values[++i];
        else
            shaders.push_back(name);
    }
    if (include.empty() || output.empty() || shaders.empty()) throw CompileError(kUsage);
    SlangCompiler compiler({{include.string()}, {}});
    std::vector<std::pair<std::filesystem::path, FileReflection>> files;
    for (const auto& shader : shaders)
        files.emplace_back(shader, reflect(compiler.check(shader), shader.string()));
    std::vector<std::string> libraries;
    for (const auto& file : std::filesystem::directory_iterator(include / "lib"))
        if (file.path().extension() == ".slang") libraries.push_back(file.path().stem().string());
    write_headers(output, files, libraries);
    return 0;
}

}  // namespace

}  // namespace anymps::shader_compiler

int main(int count, char** values) {
    try {
        return anymps::shader_compiler::run(count, values);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
