// The file format of kernels.bin, written by tools/shader_compiler and read by archive_reader.
//
// ArchiveHeader | ArchiveKernel[kernel_count], sorted by name | ArchiveFrame[frame_count] | names, each ended
// by 0 | zstd frames of packed modules (spirv/packed_module.h). All numbers little-endian. A frame holds
// kernels of one shader file, so that a process decompresses only what it runs; kernels with the same words
// share them.
#pragma once

#include <cstdint>

namespace anymps::kernels {

constexpr char kArchiveMagic[8] = {'A', 'M', 'P', 'S', 'K', 'R', 'N', '2'};

struct ArchiveHeader {
    char magic[8];
    uint32_t kernel_count;
    uint32_t frame_count;
    uint32_t name_bytes;
    uint32_t reserved;
};

struct ArchiveKernel {
    uint32_t name;   // byte offset into the names
    uint32_t frame;  // index of its frame
    uint32_t byte;   // where its packed module begins in the decompressed frame
    uint32_t words;  // length of the SPIR-V module
};

struct ArchiveFrame {
    uint64_t offset;        // from the start of the file
    uint32_t bytes;         // compressed
    uint32_t packed_bytes;  // decompressed
};

}  // namespace anymps::kernels
