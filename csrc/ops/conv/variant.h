// The specialization of the convolution kernels that fits a contraction.
#pragma once

#include <anymps/shaders/lib/conv_walk.h>

#include <cstdint>
#include <span>

#include "ops/conv/contraction.h"
#include "ops/matmul/block_layout.h"

namespace anymps::ops {

// How the gathered factor's k leads through memory.
enum class Walk : uint32_t {
    Digits = shaders::lib::conv_walk::kByDigits,
    Linear = shaders::lib::conv_walk::kLinear,
    Taps = shaders::lib::conv_walk::kByTaps,
};

struct Variant {
    BlockLayout affine, gathered;
    uint32_t spatial;  // dimensions in use, the last ones of three
    bool flat_k;       // one stride leads along all of k in the affine factor
    bool checked;      // positions can be outside the image
    bool wide_out;     // four results that follow one another are one store
    bool swapped;      // rows and columns change places
    Walk walk;
};

// The fast digits that one stride leads through: their product, that stride, and the greatest common divisor
// of the others (0: there are none).
struct Run {
    int64_t length;
    int64_t stride;
    int64_t divisor_of_others;
};
Run run_of(const Digits& digits, const DigitStrides& strides);
// Of k in the gathered factor, where no position is outside of the image.
Run gathered_run(const Contraction& c);

// What a kernel loads at once: 4 elements, or granules of 8 for the matrix tiles. Single: rows one at a time.
enum class Block { Single, Four, Granule };

// Of contractions that differ in offsets, digit sizes, steps and starts: what suits them all.
Variant variant_of(std::span<const Contraction> contractions, Block block, bool swapped);

}  // namespace anymps::ops
