// How a factor's block lies in memory, which kernels of products and convolutions are compiled for.
#pragma once

#include <anymps/shaders/lib/operand.h>

#include <cstdint>

namespace anymps::gemm {

// Rows follow k (Along) or lie across it; words of four or more elements, aligned (Wide) or not (Shifted).
enum class BlockLayout : uint32_t {
    Strided = shaders::lib::operand::kStrided,
    KMajor = shaders::lib::operand::kKMajor,
    KMajorVec = shaders::lib::operand::kKMajorVec,
    MnMajorVec = shaders::lib::operand::kMnMajorVec,
    KMajorUnaligned = shaders::lib::operand::kKMajorUnaligned,
    MnMajorUnaligned = shaders::lib::operand::kMnMajorUnaligned,
};

}  // namespace anymps::gemm
