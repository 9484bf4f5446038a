// Nearest-neighbour interpolation; `exact` takes the pixel's centre.
#include <anymps/ops/resample/upsample_nearest_ops.h>

#include "ops/resample/interpolation.h"

namespace anymps::ops {

TORCH_IMPL_FUNC(upsample_nearest1d_out)
(const Tensor& self, IntArrayRef output_size, std::optional<double> scales, const Tensor& out) {
    interpolate(out, self, ResampleMode::Nearest, {scales}, "upsample_nearest1d");
}

TORCH_IMPL_FUNC(upsample_nearest1d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, std::optional<double> scales,
 const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Nearest, {scales},
                         "upsample_nearest1d_backward");
}

TORCH_IMPL_FUNC(_upsample_nearest_exact1d_out)
(const Tensor& self, IntArrayRef output_size, std::optional<double> scales, const Tensor& out) {
    interpolate(out, self, ResampleMode::NearestExact, {scales}, "_upsample_nearest_exact1d");
}

TORCH_IMPL_FUNC(_upsample_nearest_exact1d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, std::optional<double> scales,
 const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::NearestExact, {scales},
                         "_upsample_nearest_exact1d_backward");
}

TORCH_IMPL_FUNC(upsample_nearest2d_out)
(const Tensor& self, IntArrayRef output_size, std::optional<double> scales_h, std::optional<double> scales_w,
 const Tensor& out) {
    interpolate(out, self, ResampleMode::Nearest, {scales_h, scales_w}, "upsample_nearest2d");
}

TORCH_IMPL_FUNC(upsample_nearest2d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Nearest, {scales_h, scales_w},
                         "upsample_nearest2d_backward");
}

TORCH_IMPL_FUNC(_upsample_nearest_exact2d_out)
(const Tensor& self, IntArrayRef output_size, std::optional<double> scales_h, std::optional<double> scales_w,
 const Tensor& out) {
    interpolate(out, self, ResampleMode::NearestExact, {scales_h, scales_w}, "_upsample_nearest_exact2d");
}

TORCH_IMPL_FUNC(_upsample_nearest_exact2d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::NearestExact, {scales_h, scales_w},
                         "_upsample_nearest_exact2d_backward");
}

TORCH_IMPL_FUNC(upsample_nearest3d_out)
(const Tensor& self, IntArrayRef output_size, std::optional<double> scales_d, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::Nearest, {scales_d, scales_h, scales_w}, "upsample_nearest3d");
}

TORCH_IMPL_FUNC(upsample_nearest3d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, std::optional<double> scales_d,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Nearest, {scales_d, scales_h, scales_w},
                         "upsample_nearest3d_backward");
}

TORCH_IMPL_FUNC(_upsample_nearest_exact3d_out)
(const Tensor& self, IntArrayRef output_size, std::optional<double> scales_d, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::NearestExact, {scales_d, scales_h, scales_w},
                "_upsample_nearest_exact3d");
}

TORCH_IMPL_FUNC(_upsample_nearest_exact3d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, std::optional<double> scales_d,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::NearestExact, {scales_d, scales_h, scales_w},
                         "_upsample_nearest_exact3d_backward");
}

}  // namespace anymps::ops
