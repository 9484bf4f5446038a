// Reads kernels.bin (kernel_archive.h): names at once, a kernel's SPIR-V when it is first used. Without
// PyTorch, as the shader compiler uses it too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/kernel_archive.h"

namespace anymps::kernels {

// Owner: the kernel library, for the life of the process. Thread-safe.
class ArchiveReader {
  public:
    // Maps the file. Throws std::runtime_error with a sentence when it is absent or damaged.
    explicit ArchiveReader(const std::string& path);
    ArchiveReader(const ArchiveReader&) = delete;
    ArchiveReader& operator=(const ArchiveReader&) = delete;
    ~ArchiveReader();

    uint32_t size() const { return static_cast<uint32_t>(kernels_.size()); }
    // The index of a kernel, in the order of names.
    std::optional<uint32_t> find(std::string_view name) const;
    std::string_view name(uint32_t index) const { return names_ + kernels_[index].name; }
    // Valid for the life of the reader. Unpacks the kernel at the first call, which for the first of a frame
    // decompresses that. Throws std::runtime_error where they are damaged.
    std::span<const uint32_t> spirv(uint32_t index);

  private:
    void parse();
    [[noreturn]] void raise_damaged() const;
    const uint32_t* unpack(const ArchiveKernel& kernel, uint32_t index);

    std::string path_;
    const std::byte* data_ = nullptr;
    size_t bytes_ = 0;
    std::span<const ArchiveKernel> kernels_;
    std::span<const ArchiveFrame> frames_;
    const char* names_ = nullptr;
    std::unordered_map<std::string_view, uint32_t> by_name_;
    std::mutex mutex_;                                // guards frames' and kernels' contents
    std::vector<std::unique_ptr<uint8_t[]>> packed_;  // by frame
    std::vector<std::unique_ptr<uint32_t[]>> words_;  // by kernel
    std::vector<std::atomic<const uint32_t*>> ready_;
};

}  // namespace anymps::kernels
