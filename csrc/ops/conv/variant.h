// The specialization of the convolution kernels that fits a contraction.
#pragma once

#include <cstdint>
#include <span>

#include "ops/conv/contraction.h"

namespace anymps::ops {

// Twin of the layouts in shaders/lib/operand.slang.
enum class BlockLayout : uint32_t { Across, Along, AlongWide, RowsWide };

struct Variant {
    BlockLayout affine, gathered;
    uint32_t spatial;  // dimensions in use, the last ones of three
    bool flat_k;       // one stride leads along all of k in the affine factor
    bool checked;      // positions can be outside the image
    bool wide_out;     // four results that follow one another are one store
    bool swapped;      // rows and columns change places
};

// The fast digits that one stride leads through: their product, that stride, and whether 4 divides the
// others.
struct Run {
    int64_t length;
    int64_t stride;
    bool others_multiple_of_4;
};
Run run_of(const Digits& digits, const DigitStrides& strides);

// Of contractions that differ in offsets, digit sizes, steps and starts: what suits them all.
// single_rows: the kernel takes rows one at a time, not by four.
Variant variant_of(std::span<const Contraction> contractions, bool single_rows, bool swapped);

}  // namespace anymps::ops
