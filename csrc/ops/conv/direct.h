// Convolutions on matrix units without shared memory: shaders/conv_direct.slang.
#pragma once

#include <span>
#include <vector>

#include "ops/conv/contraction.h"
#include "ops/conv/image.h"

namespace anymps::ops {

// True where direct tiles may compute what `plain` does of an image and weights. Floats are scaled halves.
bool may_be_direct(std::span<const Contraction> plain, const Image& image, int64_t taps,
                   const HalfRanges* ranges);

// Makes direct tiles compute contractions of an image, in blocks or positions, and weights of one group: each
// gets its taps as a left factor, floats as halves where all `ranges` fit. Contractions point into what is
// returned.
std::vector<at::Tensor> direct_weights(std::vector<Contraction>& contractions, const Image& image,
                                       const Image& weights, const HalfRanges* ranges);

// True where direct tiles read floats of one tap as they are, and may find out their range on the way.
bool may_see_range(const Contraction& plain, const Image& image, int64_t taps);

// True where direct tiles may compute a convolution of floats of one tap as pairs of bf16.
bool may_be_direct_pairs(const Contraction& plain, int64_t taps);

}  // namespace anymps::ops
