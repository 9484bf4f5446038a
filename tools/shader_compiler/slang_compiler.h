// Slang source to SPIR-V, all kernels of a file at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "com_ptr.h"
#include "slang.h"

namespace anymps::shader_compiler {

// A sentence for the person who wrote the shader: file, kernel, what is wrong.
class CompileError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Options {
    std::vector<std::string> include_dirs;
    std::vector<std::string> defines;
};

struct Kernel {
    std::string name;
    std::vector<uint32_t> spirv;
};

struct CompileResult {
    std::vector<Kernel> kernels;
    std::vector<std::string> read_files;  // the shader, and all that it imports and includes
    std::string warnings;
};

// Valid until the compiler's next file.
struct CheckedFile {
    struct Entry {
        std::vector<std::string> kernels;      // that are instantiations of it, or the one of its name
        std::vector<std::string> expressions;  // entry<Arg, ...> of each; none where it is not generic
        ComPtr<slang::IComponentType> linked;  // with the arguments of the first
    };
    slang::ISession* session;
    slang::IModule* module;
    std::vector<Entry> entries;
};

// Owner of one global session (250 ms to create, 200 MB), made at the first file. Not thread-safe, and two
// threads must not share one: Slang crashes.
class SlangCompiler {
  public:
    explicit SlangCompiler(Options options) : options_(std::move(options)) {}

    // Compiles every `[shader("compute")]` function that is not generic under its own name, and every
    // instantiation that a row `//! kernel` asks for (kernel_rows.h). Throws CompileError.
    CompileResult compile(const std::filesystem::path& file);

    // The file as Slang's front end has it, without compiling its kernels (some 40 ms). Throws CompileError.
    CheckedFile check(const std::filesystem::path& file);

  private:
    template <class Result>
    Result retry(Result (SlangCompiler::*in_session)(const std::filesystem::path&),
                 const std::filesystem::path& file);
    void create_session();
    slang::IModule* load(const std::filesystem::path& file, const std::string& source, std::string& warnings);
    ComPtr<slang::IComponentType> link(slang::IModule* module, slang::IComponentType* entry,
                                       const std::string& where);
    CompileResult compile_in_session(const std::filesystem::path& file);
    CheckedFile check_in_session(const std::filesystem::path& file);
    std::vector<uint32_t> generate(slang::IModule* module, slang::IComponentType* entry,
                                   const std::string& where);

    Options options_;
    ComPtr<slang::IGlobalSession> global_;
    ComPtr<slang::ISession> session_;  // keeps modules from one file to the next
};

}  // namespace anymps::shader_compiler
