// Linear, cubic and Lanczos interpolation, plain and with antialiasing.
#include <anymps/ops/resample/upsample_smooth_ops.h>

#include "ops/resample/interpolation.h"

namespace anymps::ops {

TORCH_IMPL_FUNC(upsample_linear1d_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales,
 const Tensor& out) {
    interpolate(out, self, ResampleMode::Linear, {scales}, align_corners, "upsample_linear1d");
}

TORCH_IMPL_FUNC(upsample_linear1d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Linear, {scales}, align_corners,
                         "upsample_linear1d_backward");
}

TORCH_IMPL_FUNC(upsample_bilinear2d_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::Linear, {scales_h, scales_w}, align_corners, "upsample_bilinear2d");
}

TORCH_IMPL_FUNC(upsample_bilinear2d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Linear, {scales_h, scales_w}, align_corners,
                         "upsample_bilinear2d_backward");
}

TORCH_IMPL_FUNC(upsample_trilinear3d_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales_d,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::Linear, {scales_d, scales_h, scales_w}, align_corners,
                "upsample_trilinear3d");
}

TORCH_IMPL_FUNC(upsample_trilinear3d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales_d, std::optional<double> scales_h, std::optional<double> scales_w,
 const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Linear, {scales_d, scales_h, scales_w},
                         align_corners, "upsample_trilinear3d_backward");
}

TORCH_IMPL_FUNC(upsample_bicubic2d_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::Cubic, {scales_h, scales_w}, align_corners, "upsample_bicubic2d");
}

TORCH_IMPL_FUNC(upsample_bicubic2d_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::Cubic, {scales_h, scales_w}, align_corners,
                         "upsample_bicubic2d_backward");
}

TORCH_IMPL_FUNC(_upsample_bilinear2d_aa_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::LinearAntialias, {scales_h, scales_w}, align_corners,
                "_upsample_bilinear2d_aa");
}

TORCH_IMPL_FUNC(_upsample_bilinear2d_aa_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::LinearAntialias, {scales_h, scales_w},
                         align_corners, "_upsample_bilinear2d_aa_backward");
}

TORCH_IMPL_FUNC(_upsample_bicubic2d_aa_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::CubicAntialias, {scales_h, scales_w}, align_corners,
                "_upsample_bicubic2d_aa");
}

TORCH_IMPL_FUNC(_upsample_bicubic2d_aa_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::CubicAntialias, {scales_h, scales_w},
                         align_corners, "_upsample_bicubic2d_aa_backward");
}

TORCH_IMPL_FUNC(_upsample_lanczos2d_aa_out)
(const Tensor& self, IntArrayRef output_size, bool align_corners, std::optional<double> scales_h,
 std::optional<double> scales_w, const Tensor& out) {
    interpolate(out, self, ResampleMode::LanczosAntialias, {scales_h, scales_w}, align_corners,
                "_upsample_lanczos2d_aa");
}

TORCH_IMPL_FUNC(_upsample_lanczos2d_aa_backward_grad_input)
(const Tensor& grad_output, IntArrayRef output_size, IntArrayRef input_size, bool align_corners,
 std::optional<double> scales_h, std::optional<double> scales_w, const Tensor& grad_input) {
    interpolate_backward(grad_input, grad_output, ResampleMode::LanczosAntialias, {scales_h, scales_w},
                         align_corners, "_upsample_lanczos2d_aa_backward");
}

}  // namespace anymps::ops
