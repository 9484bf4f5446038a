// Tensors as [batch, channel, depth, height, width] images.
#pragma once

#include <ATen/core/TensorBase.h>
#include <anymps/shaders/lib/image.h>

#include <array>
#include <cstdint>

#include "kernels/geometry.h"

namespace anymps::kernels {

using shaders::image::ImageIndex;    // coordinates of an element's number in the order of its memory
using shaders::image::ImageStrides;  // in elements; 0 where the size is 1, and for an undefined tensor

// A tensor [channel, ...] or [batch, channel, ...] with `spatial` last dimensions as five; missing sizes
// are 1.
class Image {
  public:
    Image(const at::TensorBase& tensor, int64_t spatial);

    const at::TensorBase& tensor() const { return tensor_; }
    // Batch, channel, depth, height, width. Raises RuntimeError for a size or stride above 2^31.
    uint32_t size(int i) const { return sizes_[i]; }
    ImageStrides strides() const { return strides_; }
    bool channels_fast() const;  // channels are the fastest in memory
    ImageIndex index() const;

  private:
    const at::TensorBase& tensor_;
    std::array<uint32_t, 5> sizes_{1, 1, 1, 1, 1};
    ImageStrides strides_{};
};

}  // namespace anymps::kernels
