// Compiles all shaders into the kernel archive, or checks single files.
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>

#include "archive_writer.h"
#include "files.h"
#include "frame_cache.h"
#include "kernels/archive_reader.h"
#include "slang_compiler.h"

namespace anymps::shader_compiler {

namespace {

constexpr const char* kUsage =
    "usage: shader_compiler [--include DIR]... [--define NAME]... (--check | --spirv DIR | --output FILE "
    "--cache DIR\n"
    "                       [--threads N]) SHADER...\n"
    "       shader_compiler --unpack FILE --spirv DIR\n"
    "  --check        compile and list the kernels and their sizes\n"
    "  --spirv DIR    write each kernel to DIR/NAME.spv\n"
    "  --output FILE  write the kernel archive; --cache keeps compiled files from one run to the next\n"
    "  --unpack FILE  write the kernels of an archive to DIR/NAME.spv\n";

struct Arguments {
    Options options;
    bool check = false;
    std::filesystem::path spirv, output, cache, unpack;
    unsigned threads = 2;
    std::vector<std::filesystem::path> shaders;
};

Arguments parse(int count, char** values) {
    Arguments result;
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        const auto value = [&]() -> std::string {
            if (i + 1 >= count) throw CompileError(name + " needs a value.\n" + kUsage);
            return values[++i];
        };
        if (name == "--include")
            result.options.include_dirs.push_back(value());
        else if (name == "--define")
            result.options.defines.push_back(value());
        else if (name == "--check")
            result.check = true;
        else if (name == "--spirv")
            result.spirv = value();
        else if (name == "--output")
            result.output = value();
        else if (name == "--cache")
            result.cache = value();
        else if (name == "--unpack")
            result.unpack = value();
        else if (name == "--threads")
            result.threads = static_cast<unsigned>(std::stoul(value()));
        else if (name.rfind("--", 0) == 0)
            throw CompileError(name + " is not an option.\n" + kUsage);
        else
            result.shaders.push_back(name);
    }
    const bool archive = !result.output.empty() && !result.cache.empty();
    const int modes = result.check + !result.spirv.empty() + archive;
    const bool takes_shaders = !archive && result.unpack.empty();
    if (modes != 1 || (result.shaders.empty() && takes_shaders)) throw CompileError(kUsage);
    if (result.options.include_dirs.empty()) result.options.include_dirs.push_back("shaders");
    return result;
}

// Everything but the shaders that decides the result: this program, the Slang library, the options.
uint64_t tool_key(const Options& options) {
    uint64_t key = hash_bytes(spGetBuildTagString(), hash_file("/proc/self/exe"));
    for (const auto& dir : options.include_dirs) key = hash_bytes(dir + ";", key);
    for (const auto& define : options.defines) key = hash_bytes(define + ";", key);
    return key;
}

void write_spirv(const std::filesystem::path& folder, std::string_view kernel,
                 std::span<const uint32_t> words) {
    write_file(folder / (std::string(kernel) + ".spv"),
               {reinterpret_cast<const char*>(words.data()), words.size_bytes()});
}

void unpack(const Arguments& arguments) {
    kernels::ArchiveReader archive(arguments.unpack);
    std::filesystem::create_directories(arguments.spirv);
    for (uint32_t i = 0; i < archive.size(); ++i) {
        write_spirv(arguments.spirv, archive.name(i), archive.spirv(i));
    }
}

void check(const Arguments& arguments) {
    SlangCompiler compiler(arguments.options);
    if (!arguments.spirv.empty()) std::filesystem::create_directories(arguments.spirv);
    for (const auto& shader : arguments.shaders) {
        const CompileResult result = compiler.compile(shader);
        std::fputs(result.warnings.c_str(), stderr);
        for (const Kernel& kernel : result.kernels) {
            if (arguments.spirv.empty())
                std::printf("%s %zu bytes\n", kernel.name.c_str(), kernel.spirv.size() * sizeof(uint32_t));
            else
                write_spirv(arguments.spirv, kernel.name, kernel.spirv);
        }
    }
}

// Compiles what the cache does not have, on several threads. Returns the number of files that failed.
size_t compile_all(const Arguments& arguments, std::vector<ShaderFile>& files) {
    const FrameCache cache(arguments.cache, tool_key(arguments.options));
    std::vector<size_t> missing;
    for (size_t i = 0; i < arguments.shaders.size(); ++i) {
        files.push_back({arguments.shaders[i], {}});
        if (auto found = cache.find(arguments.shaders[i]))
            files[i].compiled = std::move(*found);
        else
            missing.push_back(i);
    }
    std::atomic<size_t> next = 0, failed = 0;
    std::mutex output;
    const auto work = [&] {
        SlangCompiler compiler(arguments.options);
        for (size_t at = next++; at < missing.size(); at = next++) {
            ShaderFile& file = files[missing[at]];
            try {
                const CompileResult result = compiler.compile(file.path);
                file.compiled = compress(result.kernels);
                cache.store(file.path, result.read_files, file.compiled);
                const std::lock_guard lock(output);
                std::fputs(result.warnings.c_str(), stderr);
            } catch (const std::exception& error) {
                ++failed;
                const std::lock_guard lock(output);
                std::fprintf(stderr, "%s\n", error.what());
            }
        }
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < std::min<size_t>(arguments.threads, missing.size()); ++i)
        threads.emplace_back(work);
    for (auto& thread : threads) thread.join();
    return failed;
}

int run(int count, char** values) {
    const Arguments arguments = parse(count, values);
    if (!arguments.unpack.empty()) {
        unpack(arguments);
        return 0;
    }
    if (arguments.output.empty()) {
        check(arguments);
        return 0;
    }
    std::vector<ShaderFile> files;
    if (compile_all(arguments, files) != 0) return 1;
    write_archive(arguments.output, files);
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
