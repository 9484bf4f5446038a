// Polyphase output of strided data gradients: each phase of the image as a contiguous plane. Vectorized
// stores and one pass over them take less time than scattered results.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/conv_params.h"
#include "ops/conv/conv_tensor.h"

namespace anymps::ops {

struct Phases {
    at::Tensor planes;  // [phase, image...]
    uint32_t present;   // bit mask of phases that have results

    // Of x, which is contiguous and whole phases of two columns; the planes of `present` ones.
    Phases(const ConvTensor& x, const ConvParams& axes, uint32_t present);

    static bool suit(const ConvTensor& x, const ConvParams& axes);
    // Makes lines of x of them; of phases that are not present, zeros.
    void join(const ConvTensor& x, const ConvParams& axes) const;
};

}  // namespace anymps::ops
