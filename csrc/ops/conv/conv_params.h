// Stride, padding and dilation of a convolution's spatial axes.
#pragma once

#include <c10/util/ArrayRef.h>

#include "ops/conv/implicit_gemm.h"

namespace anymps::ops {

// Position of x = position of y * stride + tap * dilation - padding, for three axes; unused leading ones are
// neutral.
struct ConvParams {
    Dim3 stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    int64_t spatial;  // dimensions of the tensors

    // Lists of one value stand for all axes.
    ConvParams(c10::IntArrayRef strides, c10::IntArrayRef paddings, c10::IntArrayRef dilations,
               int64_t spatial)
        : spatial(spatial) {
        const auto at = [](c10::IntArrayRef values, int64_t i) {
            return values.size() == 1 ? values[0] : values[i];
        };
        for (int64_t i = 0; i < spatial; ++i) {
            const int64_t axis = 3 - spatial + i;
            stride[axis] = at(strides, i);
            padding[axis] = at(paddings, i);
            dilation[axis] = at(dilations, i);
        }
    }
};

}  // namespace anymps::ops
