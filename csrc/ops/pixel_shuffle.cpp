// pixel_shuffle: the r x r channels of a pixel become r x r pixels.
#include <anymps/ops/pixel_shuffle_ops.h>

#include <ATen/native/PixelShuffle.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pixel_shuffle_native.h>

#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

// As in shaders/pixel_shuffle.slang.
struct PixelShuffleArgs {
    uint64_t out, self;
    uint32_t count;
    kernels::FastDivider width, factor, height;
};

}  // namespace

Tensor ANYMPS_FUNC(pixel_shuffle)(const Tensor& self, int64_t upscale_factor) {
    at::native::check_pixel_shuffle_shapes(self, upscale_factor);
    // Other layouts, and more elements than 32 bits number, are copied by their strides.
    const bool dense =
        self.is_contiguous() && self.numel() > 0 && self.numel() <= std::numeric_limits<int32_t>::max();
    if (!dense) return at::native::math_pixel_shuffle(self, upscale_factor);
    auto sizes = self.sizes().vec();
    const size_t channels = sizes.size() - 3;
    sizes[channels] /= upscale_factor * upscale_factor;
    sizes[channels + 1] *= upscale_factor;
    sizes[channels + 2] *= upscale_factor;
    const Tensor out = at::empty(sizes, self.options());
    const auto divider = [](int64_t n) { return kernels::FastDivider(static_cast<uint32_t>(n)); };
    const PixelShuffleArgs args{
        kernels::address(out),  kernels::address(self),  static_cast<uint32_t>(self.numel() / upscale_factor),
        divider(self.size(-1)), divider(upscale_factor), divider(self.size(-2))};
    const auto type = kernels::code(kernels::integer_of_size(self.element_size()));
    kernels::KernelCall("pixel_shuffle",
                        {kernels::flat_workgroup(), 0, type, static_cast<uint32_t>(upscale_factor)})
        .read(self)
        .write(out)
        .dispatch(args, kernels::flat_grid(args.count));
    return out;
}

}  // namespace anymps::ops
