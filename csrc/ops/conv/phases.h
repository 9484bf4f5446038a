// Where gradients of strided convolutions go first: each phase of the image as a plane whose results follow
// one another. Stores of whole words and one pass over them take less time than single results, positions
// apart.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/axes.h"
#include "ops/conv/image.h"

namespace anymps::ops {

struct Phases {
    at::Tensor planes;  // [phase, image...]
    uint32_t present;   // a bit for each phase that has results

    // Of x, which is contiguous and whole phases of two columns; the planes of `present` ones.
    Phases(const Image& x, const Axes& axes, uint32_t present);

    static bool suit(const Image& x, const Axes& axes);
    // Makes lines of x of them; of phases that are not present, zeros.
    void join(const Image& x, const Axes& axes) const;
};

}  // namespace anymps::ops
