// Images [batch, channels, ...] and weights [channels of y, channels of x in a group, ...] of convolutions,
// with three spatial dimensions, as [outer, group, channel, depth, height, width].
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/conv/implicit_gemm.h"

namespace anymps::ops {

// Encoding of an image's floats in memory, and of the loads. ScaledF16 is scaled by the amax; the device
// chooses between Bf16x2 (kBf16x2 of shaders/lib/product.slang) and ScaledF16. ScaledOnLoad: floats as they
// are, converted to f16 by the tiles.
enum class Form { Plain, Bf16x2, ScaledF16, Bf16x2OrScaledF16, ScaledOnLoad };

struct ConvTensor {
    at::Tensor tensor;
    int64_t outer, channels;  // channels of a group
    int64_t outer_stride, group_stride, channel_stride;
    Dim3 sizes{1, 1, 1}, strides{0, 0, 0};
    int64_t padded = channels;  // channels of a group with their padding, which is 0
    int64_t block_stride = 0;   // NC/16HWc16: elements between blocks of 16 channels; else 0
    Form form = Form::Plain;
    uint64_t amax_state = 0;  // address of its AmaxState; 0: none
    bool fused_amax = false;  // scaled by the sampled amax: the kernel that reads it computes the exact one

    // Channels follow one another, positions do not.
    bool is_channels_last() const {
        return padded > 1 && channel_stride == 1 && (sizes[2] == 1 || strides[2] != 1);
    }
    int64_t positions() const { return sizes[0] * sizes[1] * sizes[2]; }
    bool pairs() const { return form == Form::Bf16x2; }
    uint64_t scale() const { return form == Form::ScaledF16 || form == Form::ScaledOnLoad ? amax_state : 0; }
    // View of an image of either encoding as one of the two; plain floats are converted by the tiles.
    ConvTensor as(Form way) const;
};

// batch x channels.
ConvTensor activation_of(const at::Tensor& tensor, int64_t groups);
// Channels of y in a group x channels of x in a group.
ConvTensor filter_of(const at::Tensor& tensor, int64_t groups);
// Outer dimension and channels change places.
ConvTensor transposed(ConvTensor weight);

// NHWC copy for loads of 16-byte vectors: channels of a group padded to a multiple of 8. An image that is so
// already comes back as it is. ScaledF16 is for images whose amax is one of `amaxes`; where not all scales
// are valid its memory is left as it is.
ConvTensor packed(const ConvTensor& image, int64_t groups, Form form, const AmaxStates* amaxes = nullptr);

// NC/16HWc16 copy of an image of one group, of whole blocks, for shaders/lib/conv_nosmem_activation.slang:
// [outer, channels / 16, position, 16]. Floats are scaled f16 in this layout where all scales are valid; else
// bf16x2 as `packed` has them.
ConvTensor to_blocked(const ConvTensor& image, const AmaxStates* amaxes);
// The scaled f16 of to_blocked.
ConvTensor scaled_blocked(ConvTensor image);

// Amax of an image into its state: exact, or sampled before the exact one is known.
void compute_amax(const ConvTensor& image, int64_t groups);
void sample_amax(const ConvTensor& image, int64_t groups);

}  // namespace anymps::ops
