#include "compiler/disk_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "compiler/sha256.h"

namespace anymps::compiler {
namespace {

constexpr std::string_view kMagic = "anymps1\n";  // then the digest of what follows it
constexpr size_t kHeader = kMagic.size() + sizeof(Sha256::Digest);

}  // namespace

std::optional<std::string> DiskCache::find(const std::string& name) const {
    std::ifstream in(folder_ / name, std::ios::binary);
    if (!in) return std::nullopt;
    std::ostringstream text;
    text << in.rdbuf();
    std::string bytes = std::move(text).str();
    if (bytes.size() < kHeader || !bytes.starts_with(kMagic)) return std::nullopt;
    const Sha256::Digest digest = sha256(std::string_view(bytes).substr(kHeader));
    if (std::memcmp(digest.data(), bytes.data() + kMagic.size(), digest.size()) != 0) return std::nullopt;
    bytes.erase(0, kHeader);
    return bytes;
}

void DiskCache::store(const std::string& name, std::string_view bytes) const {
    static std::atomic<unsigned> serial{0};
    const std::filesystem::path file = folder_ / name;
    std::error_code error;
    std::filesystem::create_directories(file.parent_path(), error);
    const std::filesystem::path temporary =
        file.string() + "." + std::to_string(getpid()) + "." + std::to_string(serial++);
    const Sha256::Digest digest = sha256(bytes);
    std::ofstream out(temporary, std::ios::binary);
    out << kMagic;
    out.write(reinterpret_cast<const char*>(digest.data()), digest.size());
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (out) std::filesystem::rename(temporary, file, error);
    if (!out || error) std::filesystem::remove(temporary, error);
}

}  // namespace anymps::compiler
