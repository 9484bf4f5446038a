// Images [batch, channels, ...] and weights [channels of y, channels of x in a group, ...] of convolutions,
// with three spatial dimensions, as [outer, group, channel, depth, height, width].
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/contraction.h"

namespace anymps::ops {

struct Image {
    at::Tensor tensor;
    int64_t outer, channels;  // channels of a group
    int64_t outer_stride, group_stride, channel_stride;
    Triple sizes{1, 1, 1}, strides{0, 0, 0};
    int64_t padded = channels;  // with the channels of 0 behind those of each group
    bool pairs = false;         // floats cut into kPairs of shaders/lib/product.slang

    // Channels follow one another, positions do not.
    bool channels_fastest() const {
        return padded > 1 && channel_stride == 1 && (sizes[2] == 1 || strides[2] != 1);
    }
    int64_t positions() const { return sizes[0] * sizes[1] * sizes[2]; }
};

// batch x channels.
Image image_of(const at::Tensor& tensor, int64_t groups);
// Channels of y in a group x channels of x in a group.
Image weight_of(const at::Tensor& tensor, int64_t groups);
// Outer dimension and channels change places.
Image transposed(Image weight);

// The image as the tiles of matrix units read it in words of 16 bytes: channels fastest, those of a group
// padded to a multiple of 8. An image that is so already comes back as it is. cut: floats become pairs.
Image packed(const Image& image, int64_t groups, bool cut);

}  // namespace anymps::ops
