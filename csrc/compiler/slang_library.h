// Slang source text to SPIR-V at run time. The library is opened by path: nothing is linked.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/source_folders.h"

namespace anymps::compiler {

// libslang-compiler.so, open until the process ends. Thread-safe.
class SlangLibrary {
  public:
    // Throws std::runtime_error with one sentence when the file cannot be opened or is no Slang library.
    explicit SlangLibrary(const std::string& path);

    const std::string& path() const { return path_; }
    // Slang's own, e.g. "2026.12".
    const std::string& version() const { return version_; }
    // slang_createGlobalSession2.
    void* create_global_session() const { return create_global_session_; }
    // spReflectionFunction_GetName; nullptr where the library lacks it.
    void* function_name() const { return function_name_; }
    // Sessions in which kernels were compiled: one a thread, and one for each kernel that was tried again.
    std::atomic<uint64_t>& sessions() const { return sessions_; }

  private:
    std::string path_, version_;
    void* create_global_session_;
    void* function_name_;
    mutable std::atomic<uint64_t> sessions_{0};
};

// One thread's compiler: 200 ms to create, 170 MB. Slang crashes when two threads share one.
class SlangSession {
  public:
    // Imports are looked up in `sources`, and before that in `modules`. All three must outlive the session.
    SlangSession(const SlangLibrary& library, const SourceFolders& sources, ModuleCache& modules);
    ~SlangSession();

    // The SPIR-V words of the source's entry point `main_kernel`, as the build-time compiler would make them
    // (tools/shader_compiler). Throws std::runtime_error with Slang's diagnostics, then the numbered lines of
    // the source.
    std::vector<uint32_t> compile(const std::string& source);

    // The same for every entry point of the source, by its name and in the source's order; a module has one
    // entry point and calls it "main".
    std::vector<std::pair<std::string, std::vector<uint32_t>>> compile_all(const std::string& source);

    // Reads what a source imports, and generates nothing. Throws as compile() does.
    void prepare(const std::string& source);

    // Gives `modules` what this session had to read as text, 2 ms a module.
    void keep_modules();

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace anymps::compiler
