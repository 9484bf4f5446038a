#include "archive_writer.h"

#include <cstring>
#include <map>

#include "files.h"
#include "kernels/kernel_archive.h"

namespace anymps::shader_compiler {

namespace {

using kernels::ArchiveFrame;
using kernels::ArchiveHeader;
using kernels::ArchiveKernel;

template <class T>
void append(std::string& bytes, const std::vector<T>& items) {
    bytes.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
}

}  // namespace

void write_archive(const std::filesystem::path& output, const std::vector<ShaderFile>& files) {
    struct Named {
        const ShaderFile* file;
        ArchiveKernel kernel;
    };
    std::map<std::string, Named> by_name;
    std::vector<ArchiveFrame> frames;
    for (const ShaderFile& file : files) {
        const auto first_frame = static_cast<uint32_t>(frames.size());
        for (const Frame& frame : file.compiled.frames) {
            frames.push_back({0, static_cast<uint32_t>(frame.compressed.size()), frame.packed_bytes});
        }
        for (const PlacedKernel& kernel : file.compiled.kernels) {
            const ArchiveKernel row{0, first_frame + kernel.frame, kernel.byte, kernel.words};
            const auto [entry, is_new] = by_name.try_emplace(kernel.name, Named{&file, row});
            if (!is_new) {
                throw CompileError("The kernel name " + kernel.name + " is used in " +
                                   entry->second.file->path.string() + " and in " + file.path.string() +
                                   "; kernel names are unique over all shaders.");
            }
        }
    }
    std::vector<ArchiveKernel> kernels;
    std::string names;
    for (auto& [name, named] : by_name) {
        named.kernel.name = static_cast<uint32_t>(names.size());
        kernels.push_back(named.kernel);
        names.append(name.c_str(), name.size() + 1);
    }
    ArchiveHeader header{};
    std::memcpy(header.magic, kernels::kArchiveMagic, sizeof(header.magic));
    header.kernel_count = static_cast<uint32_t>(kernels.size());
    header.frame_count = static_cast<uint32_t>(frames.size());
    header.name_bytes = static_cast<uint32_t>(names.size());
    uint64_t offset = sizeof(header) + kernels.size() * sizeof(ArchiveKernel) +
                      frames.size() * sizeof(ArchiveFrame) + names.size();
    for (ArchiveFrame& frame : frames) {
        frame.offset = offset;
        offset += frame.bytes;
    }
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    append(bytes, kernels);
    append(bytes, frames);
    bytes += names;
    for (const ShaderFile& file : files) {
        for (const Frame& frame : file.compiled.frames) bytes += frame.compressed;
    }
    write_file(output, bytes);
}

}  // namespace anymps::shader_compiler
