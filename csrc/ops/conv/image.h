// Images [batch, channels, ...] and weights [channels of y, channels of x in a group, ...] of convolutions,
// with three spatial dimensions, as [outer, group, channel, depth, height, width].
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/contraction.h"

namespace anymps::ops {

// How the floats of an image lie in memory, and are read. Halves are scaled by what is known of their range;
// the device chooses between pairs (kPairs of shaders/lib/product.slang) and halves. Scaled: floats as they
// are, of which the tiles make halves.
enum class Form { Plain, Pairs, Halves, PairsOrHalves, Scaled };

struct Image {
    at::Tensor tensor;
    int64_t outer, channels;  // channels of a group
    int64_t outer_stride, group_stride, channel_stride;
    Triple sizes{1, 1, 1}, strides{0, 0, 0};
    int64_t padded = channels;  // with the channels of 0 behind those of each group
    int64_t block_stride = 0;   // where channels come in blocks of 16
    Form form = Form::Plain;
    uint64_t range = 0;  // address of its HalfRange, where it has one
    bool seen = false;   // by a guess: the product that reads it finds out its range

    // Channels follow one another, positions do not.
    bool channels_fastest() const {
        return padded > 1 && channel_stride == 1 && (sizes[2] == 1 || strides[2] != 1);
    }
    int64_t positions() const { return sizes[0] * sizes[1] * sizes[2]; }
    bool pairs() const { return form == Form::Pairs; }
    uint64_t scale() const { return form == Form::Halves || form == Form::Scaled ? range : 0; }
    // One of the two ways to read an image of either; of plain floats tiles make halves or pairs themselves.
    Image as(Form way) const;
};

// batch x channels.
Image image_of(const at::Tensor& tensor, int64_t groups);
// Channels of y in a group x channels of x in a group.
Image weight_of(const at::Tensor& tensor, int64_t groups);
// Outer dimension and channels change places.
Image transposed(Image weight);

// The image as the tiles of matrix units read it in words of 16 bytes: channels fastest, those of a group
// padded to a multiple of 8. An image that is so already comes back as it is. Halves are for images whose
// range is one of `ranges`; where not all of these fit, the memory of Form::Halves is left as it is.
Image packed(const Image& image, int64_t groups, Form form, const HalfRanges* ranges = nullptr);

// An image of one group, of whole blocks, as shaders/lib/conv_direct_image.slang reads it: [outer, 16
// channels, position, 16]. Of floats the halves lie so, where all ranges fit; else pairs as `packed` has
// them.
Image in_blocks(const Image& image, const HalfRanges* ranges);
// What in_blocks has made of floats: the blocks of halves.
Image halves_in_blocks(Image image);

// Finds out what belongs at image.range; or, before that is known, about how large the image's elements are.
void find_range(const Image& image, int64_t groups);
void guess_range(const Image& image, int64_t groups);

}  // namespace anymps::ops
