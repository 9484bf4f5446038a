// Writes the C++ headers of all shaders. A program of its own: the shader compiler's cache is valid for one
// build of it, and a change of what headers look like compiles no kernel again.
#include <cstdio>
#include <regex>

#include "files.h"
#include "header_writer.h"

namespace anymps::shader_compiler {

namespace {

constexpr const char* kUsage = "usage: shader_headers --include DIR --output DIR SHADER...\n";

// Files that begin as modules or parts of them, by stem: headers' namespaces are named so.
std::map<std::string, std::filesystem::path> modules_below(const std::filesystem::path& folder) {
    const std::regex declaration(R"((^|\n)(module|implementing) \w+;)");
    std::map<std::string, std::filesystem::path> result;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
        if (file.path().extension() != ".slang" || !std::regex_search(read_file(file.path()), declaration))
            continue;
        const auto [other, is_new] =
            result.try_emplace(file.path().stem().string(), file.path().lexically_relative(folder));
        if (!is_new)
            throw CompileError(file.path().string() + " has the name of shaders/" + other->second.string() +
                               ".");
    }
    return result;
}

// Where the header lies in the folder of headers: as the shader below `include`; that of a generated one
// beside them.
std::filesystem::path place_of(const std::filesystem::path& shader, const std::filesystem::path& include) {
    const std::filesystem::path relative = shader.lexically_proximate(include);
    return *relative.begin() == ".." ? shader.filename() : relative;
}

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
    const auto libraries = modules_below(include);
    SlangCompiler compiler({{include.string()}, {}});
    std::vector<std::pair<std::filesystem::path, FileReflection>> files;
    for (const auto& shader : shaders)
        files.emplace_back(place_of(shader, include),
                           reflect(compiler.check(shader), shader.string(), libraries));
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
