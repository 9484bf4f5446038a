#include "kernels/archive_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "spirv/packed_module.h"

namespace anymps::kernels {

ArchiveReader::ArchiveReader(const std::string& path) : path_(path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        throw std::runtime_error("The kernel archive " + path + " cannot be opened (" + std::strerror(errno) +
                                 "). Install torch-anymps again.");
    }
    struct stat status {};
    void* mapped = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(ArchiveHeader))) {
        mapped = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (mapped == MAP_FAILED) raise_damaged();
    data_ = static_cast<const std::byte*>(mapped);
    bytes_ = status.st_size;
    parse();
}

ArchiveReader::~ArchiveReader() {
    munmap(const_cast<std::byte*>(data_), bytes_);
}

void ArchiveReader::raise_damaged() const {
    throw std::runtime_error("The kernel archive " + path_ +
                             " is damaged or of another version. Install torch-anymps again.");
}

void ArchiveReader::parse() {
    const auto& header = *reinterpret_cast<const ArchiveHeader*>(data_);
    const uint64_t kernels_at = sizeof(ArchiveHeader);
    const uint64_t frames_at = kernels_at + uint64_t{header.kernel_count} * sizeof(ArchiveKernel);
    const uint64_t names_at = frames_at + uint64_t{header.frame_count} * sizeof(ArchiveFrame);
    if (std::memcmp(header.magic, kArchiveMagic, sizeof(kArchiveMagic)) != 0 ||
        names_at + header.name_bytes > bytes_) {
        raise_damaged();
    }
    kernels_ = {reinterpret_cast<const ArchiveKernel*>(data_ + kernels_at), header.kernel_count};
    frames_ = {reinterpret_cast<const ArchiveFrame*>(data_ + frames_at), header.frame_count};
    names_ = reinterpret_cast<const char*>(data_ + names_at);
    for (const ArchiveFrame& frame : frames_) {
        if (frame.offset > bytes_ || frame.bytes > bytes_ - frame.offset) raise_damaged();
    }
    by_name_.reserve(kernels_.size());
    for (uint32_t i = 0; i < kernels_.size(); ++i) {
        const ArchiveKernel& kernel = kernels_[i];
        if (kernel.frame >= frames_.size() || kernel.name >= header.name_bytes ||  // a word is a byte or more
            uint64_t{kernel.byte} + kernel.words > frames_[kernel.frame].packed_bytes) {
            raise_damaged();
        }
        by_name_.emplace(name(i), i);
    }
    packed_.resize(frames_.size());
    words_.resize(kernels_.size());
    ready_ = std::vector<std::atomic<const uint32_t*>>(kernels_.size());
}

std::optional<uint32_t> ArchiveReader::find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

const uint32_t* ArchiveReader::unpack(const ArchiveKernel& kernel, uint32_t index) {
    const std::lock_guard lock(mutex_);
    if (words_[index]) return words_[index].get();
    const ArchiveFrame& frame = frames_[kernel.frame];
    if (!packed_[kernel.frame]) {
        auto packed = std::make_unique<uint8_t[]>(frame.packed_bytes);
        if (ZSTD_decompress(packed.get(), frame.packed_bytes, data_ + frame.offset, frame.bytes) !=
            frame.packed_bytes)
            raise_damaged();
        packed_[kernel.frame] = std::move(packed);
    }
    auto words = std::make_unique<uint32_t[]>(kernel.words);
    const std::span packed(packed_[kernel.frame].get(), frame.packed_bytes);
    if (!spirv::unpack(packed.subspan(kernel.byte), {words.get(), kernel.words})) raise_damaged();
    words_[index] = std::move(words);
    ready_[index].store(words_[index].get(), std::memory_order_release);
    return words_[index].get();
}

std::span<const uint32_t> ArchiveReader::spirv(uint32_t index) {
    const ArchiveKernel& kernel = kernels_[index];
    const uint32_t* words = ready_[index].load(std::memory_order_acquire);
    if (words == nullptr) words = unpack(kernel, index);
    return {words, kernel.words};
}

}  // namespace anymps::kernels
