#include "frame_cache.h"

#include <zstd.h>

#include <cstring>
#include <map>

#include "files.h"
#include "spirv/packed_module.h"

namespace anymps::shader_compiler {

namespace {

constexpr size_t kFrameBytes = 1 << 20;
constexpr int kLevel = 19;

Frame compress_packed(const std::string& packed) {
    std::string out(ZSTD_compressBound(packed.size()), '\0');
    const size_t size = ZSTD_compress(out.data(), out.size(), packed.data(), packed.size(), kLevel);
    if (ZSTD_isError(size)) throw CompileError(std::string("zstd failed: ") + ZSTD_getErrorName(size) + ".");
    out.resize(size);
    return {static_cast<uint32_t>(packed.size()), std::move(out)};
}

// Fields one after another, read back in the same order.
class Writer {
  public:
    void number(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
    void text(const std::string& value) {
        number(value.size());
        bytes_ += value;
    }
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

class Reader {
  public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    uint64_t number() {
        uint64_t value = 0;
        std::memcpy(&value, take(sizeof(value)), sizeof(value));
        return value;
    }
    std::string text() {
        const uint64_t size = number();
        return {take(size), size};
    }

  private:
    const char* take(size_t size) {
        if (size > bytes_.size())
            throw CompileError("A file of the shader cache is damaged; delete the cache.");
        const char* result = bytes_.data();
        bytes_.remove_prefix(size);
        return result;
    }

    std::string_view bytes_;
};

}  // namespace

CompiledFile compress(const std::vector<Kernel>& kernels) {
    CompiledFile result;
    std::string frame;
    std::map<std::vector<uint32_t>, uint32_t> placed;
    const auto finish_frame = [&] {
        if (frame.empty()) return;
        result.frames.push_back(compress_packed(frame));
        frame.clear();
        placed.clear();
    };
    for (const Kernel& kernel : kernels) {
        if (frame.size() > kFrameBytes) finish_frame();
        const auto [entry, is_new] = placed.try_emplace(kernel.spirv, static_cast<uint32_t>(frame.size()));
        if (is_new) spirv::pack(kernel.spirv, frame);
        result.kernels.push_back({kernel.name, static_cast<uint32_t>(result.frames.size()), entry->second,
                                  static_cast<uint32_t>(kernel.spirv.size())});
    }
    finish_frame();
    return result;
}

FrameCache::FrameCache(std::filesystem::path folder, uint64_t tool_key)
    : folder_(std::move(folder)), tool_key_(tool_key) {
    std::filesystem::create_directories(folder_);
}

std::filesystem::path FrameCache::entry(const std::filesystem::path& shader) const {
    return folder_ / (shader.stem().string() + "_" + std::to_string(hash_bytes(shader.string())) + ".frames");
}

std::optional<CompiledFile> FrameCache::find(const std::filesystem::path& shader) const {
    const auto file = entry(shader);
    if (!std::filesystem::exists(file)) return std::nullopt;
    const std::string bytes = read_file(file);
    Reader in(bytes);
    if (in.number() != tool_key_) return std::nullopt;
    for (uint64_t left = in.number(); left > 0; --left) {
        const std::string dependency = in.text();
        if (in.number() != hash_file(dependency)) return std::nullopt;
    }
    CompiledFile result;
    for (uint64_t left = in.number(); left > 0; --left) {
        PlacedKernel kernel;
        kernel.name = in.text();
        kernel.frame = static_cast<uint32_t>(in.number());
        kernel.byte = static_cast<uint32_t>(in.number());
        kernel.words = static_cast<uint32_t>(in.number());
        result.kernels.push_back(std::move(kernel));
    }
    for (uint64_t left = in.number(); left > 0; --left) {
        const auto packed_bytes = static_cast<uint32_t>(in.number());
        result.frames.push_back({packed_bytes, in.text()});
    }
    return result;
}

void FrameCache::store(const std::filesystem::path& shader, const std::vector<std::string>& read_files,
                       const CompiledFile& compiled) const {
    Writer out;
    out.number(tool_key_);
    out.number(read_files.size());
    for (const auto& dependency : read_files) {
        out.text(dependency);
        out.number(hash_file(dependency));
    }
    out.number(compiled.kernels.size());
    for (const auto& kernel : compiled.kernels) {
        out.text(kernel.name);
        out.number(kernel.frame);
        out.number(kernel.byte);
        out.number(kernel.words);
    }
    out.number(compiled.frames.size());
    for (const auto& frame : compiled.frames) {
        out.number(frame.packed_bytes);
        out.text(frame.compressed);
    }
    write_file(entry(shader), out.bytes());
}

}  // namespace anymps::shader_compiler
