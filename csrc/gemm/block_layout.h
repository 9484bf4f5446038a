// How an operand's block lies in memory, which kernels of products and convolutions are compiled for.
#pragma once

#include <anymps/shaders/gemm/operand.h>

#include <cstdint>

namespace anymps::gemm {

// Rows follow k (Along) or lie across it; words of four or more elements, aligned (Wide) or not (Shifted).
enum class BlockLayout : uint32_t {
    Strided = shaders::operand::kStrided,
    KMajor = shaders::operand::kKMajor,
    KMajorVec = shaders::operand::kKMajorVec,
    MnMajorVec = shaders::operand::kMnMajorVec,
    KMajorUnaligned = shaders::operand::kKMajorUnaligned,
    MnMajorUnaligned = shaders::operand::kMnMajorUnaligned,
};

// Whether subgroups of 32 hold fragments of this type as shaders/attention/flash.slang says; swapped: with
// rows and columns that are 8 apart in the other order.
struct FragmentLayout {
    bool known = false, acc_swapped = false, a_swapped = false;
    bool b_known = false, b_swapped = false;
};

}  // namespace anymps::gemm
