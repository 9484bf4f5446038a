// Specialization of the convolution kernels for an implicit GEMM.
#pragma once

#include <anymps/shaders/conv/conv_iterator.h>

#include <cstdint>
#include <span>

#include "gemm/block_layout.h"
#include "ops/conv/implicit_gemm.h"

namespace anymps::ops {

// How the im2col operand's k leads through memory.
enum class IteratorMode : uint32_t {
    Coordinates = shaders::conv_iterator::kByCoordinates,
    Linear = shaders::conv_iterator::kLinear,
    Taps = shaders::conv_iterator::kByTaps,
};

struct Variant {
    gemm::BlockLayout strided, im2col;
    uint32_t spatial;  // spatial dimensions in use, the last ones of three
    bool flat_k;       // the strided operand has one stride along all of k
    bool checked;      // positions may be padding: predicated loads
    bool wide_out;     // results store as vec4
    bool swapped;      // rows and columns are exchanged
    IteratorMode mode;

    // No-smem tiles can load the im2col operand as it is, and store vec4. Of Block::Vec4.
    bool reads_positions() const {
        return im2col == gemm::BlockLayout::MnMajorVec && mode == IteratorMode::Linear && wide_out;
    }
};

// Fast coordinates that collapse into one stride: their product, that stride, and the greatest common divisor
// of the other strides (0: there are none).
struct Run {
    int64_t length;
    int64_t stride;
    int64_t divisor_of_others;
};
Run run_of(const Coordinates& coordinates, const CoordinateStrides& strides);
// Run of k in the im2col operand where no position is padding.
Run im2col_run(const ImplicitGemm& c);

// Vector size of a kernel's loads: vec4, or vec8 for matrix units. Scalar: rows one at a time.
enum class Block { Scalar, Vec4, Vec8 };

// Variant that suits implicit GEMMs which differ in offsets, coordinate sizes, steps and starts.
Variant variant_of(const vulkan::DeviceInfo& device, std::span<const ImplicitGemm> gemms, Block block,
                   bool swapped);

// The operands that the tiles of matrix units can load, as variant_of(Block::Vec8) says, where no storage is
// too large for them.
struct Vectorizable {
    bool strided, im2col;

    bool both() const { return strided && im2col; }
};
Vectorizable is_vectorizable(const vulkan::DeviceInfo& device, std::span<const ImplicitGemm> gemms);

}  // namespace anymps::ops
