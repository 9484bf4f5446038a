// pixel_shuffle: the r x r channels of a pixel become r x r pixels; pixel_unshuffle: back again.
#include <anymps/ops/resample/pixel_shuffle_ops.h>
#include <anymps/shaders/resample/pixel_shuffle.h>

#include <ATen/native/PixelShuffle.h>
#include <ATen/ops/empty.h>

#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/memory_format.h"

namespace anymps::ops {
namespace {

// [..., C, H, W] as [..., C / r^2, r, r, H, W], or as [..., C, H / r, r, W / r, r] in that order of
// dimensions.
Tensor split_channels(const Tensor& image, int64_t r) {
    return image.unflatten(-3, {image.size(-3) / (r * r), r, r});
}
Tensor split_pixels(const Tensor& image, int64_t r) {
    const Tensor split = image.unflatten(-1, {image.size(-1) / r, r}).unflatten(-3, {image.size(-2) / r, r});
    return split.movedim({-3, -1}, {-4, -3});
}

// Of image's last three dimensions; channels-last where the image is.
Tensor empty_image(const Tensor& self, int64_t channels, int64_t height, int64_t width) {
    auto sizes = self.sizes().vec();
    sizes[sizes.size() - 3] = channels;
    sizes[sizes.size() - 2] = height;
    sizes[sizes.size() - 1] = width;
    Tensor out = at::empty(sizes, self.options());
    if (self.dim() == 4) take_memory_format(out, self);
    return out;
}

}  // namespace

Tensor ANYMPS_FUNC(pixel_shuffle)(const Tensor& self, int64_t upscale_factor) {
    at::native::check_pixel_shuffle_shapes(self, upscale_factor);
    // Other layouts, and more elements than 32 bits number, are copied by their strides.
    const bool dense =
        self.is_contiguous() && self.numel() > 0 && self.numel() <= std::numeric_limits<int32_t>::max();
    const Tensor out = empty_image(self, self.size(-3) / (upscale_factor * upscale_factor),
                                   self.size(-2) * upscale_factor, self.size(-1) * upscale_factor);
    if (!dense) {
        if (out.numel() > 0) split_pixels(out, upscale_factor).copy_(split_channels(self, upscale_factor));
        return out;
    }
    const auto divider = [](int64_t n) { return kernels::FastDivider(static_cast<uint32_t>(n)); };
    const shaders::pixel_shuffle::PixelShuffleArgs args{
        .out = kernels::address(out),
        .self = kernels::address(self),
        .count = static_cast<uint32_t>(self.numel() / upscale_factor),
        .width = divider(self.size(-1)),
        .factor = divider(upscale_factor),
        .height = divider(self.size(-2))};
    const auto type = kernels::code(kernels::integer_of_size(self.element_size()));
    shaders::pixel_shuffle::pixel_shuffle
        .call({.workgroup = kernels::flat_workgroup(),
               .type = type,
               .factor = static_cast<uint32_t>(upscale_factor)})
        .read(self)
        .write(out)
        .dispatch(args, kernels::flat_grid(args.count));
    return out;
}

Tensor ANYMPS_FUNC(pixel_unshuffle)(const Tensor& self, int64_t downscale_factor) {
    at::native::check_pixel_unshuffle_shapes(self, downscale_factor);
    const Tensor out = empty_image(self, self.size(-3) * downscale_factor * downscale_factor,
                                   self.size(-2) / downscale_factor, self.size(-1) / downscale_factor);
    if (out.numel() > 0) split_channels(out, downscale_factor).copy_(split_pixels(self, downscale_factor));
    return out;
}

}  // namespace anymps::ops
