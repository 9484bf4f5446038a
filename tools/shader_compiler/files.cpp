#include "files.h"

#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "slang_compiler.h"

namespace anymps::shader_compiler {

std::string read_file(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw CompileError("The file " + file.string() + " cannot be read.");
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

void write_file(const std::filesystem::path& file, std::string_view bytes) {
    const std::filesystem::path temporary = file.string() + "." + std::to_string(getpid());
    {
        std::ofstream out(temporary, std::ios::binary);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if (!out) throw CompileError("The file " + temporary.string() + " cannot be written.");
    }
    std::filesystem::rename(temporary, file);
}

uint64_t hash_bytes(std::string_view bytes, uint64_t seed) {
    for (const char byte : bytes) seed = (seed ^ static_cast<uint8_t>(byte)) * 1099511628211ull;
    return seed;
}

uint64_t hash_file(const std::string& file) {
    static std::mutex mutex;
    static std::map<std::string, uint64_t> known;
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = known.try_emplace(file, 0);
    if (is_new && std::filesystem::exists(file)) entry->second = hash_bytes(read_file(file));
    return entry->second;
}

}  // namespace anymps::shader_compiler
