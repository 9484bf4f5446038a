// Linear, cubic and Lanczos interpolation, plain and with antialiasing.
#include <anymps/ops/resample/upsample_smooth_ops.h>

#include "ops/resample/interpolation.h"

namespace anymps::ops {

using enum ResampleMode;

ANYMPS_ROW(upsample_linear1d_out,
           interpolate(out, self, Linear, {scales}, "upsample_linear1d", align_corners))
ANYMPS_ROW(upsample_linear1d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Linear, {scales}, "upsample_linear1d_backward",
                                align_corners))
ANYMPS_ROW(upsample_bilinear2d_out,
           interpolate(out, self, Linear, {scales_h, scales_w}, "upsample_bilinear2d", align_corners))
ANYMPS_ROW(upsample_bilinear2d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Linear, {scales_h, scales_w},
                                "upsample_bilinear2d_backward", align_corners))
ANYMPS_ROW(upsample_trilinear3d_out, interpolate(out, self, Linear, {scales_d, scales_h, scales_w},
                                                 "upsample_trilinear3d", align_corners))
ANYMPS_ROW(upsample_trilinear3d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Linear, {scales_d, scales_h, scales_w},
                                "upsample_trilinear3d_backward", align_corners))
ANYMPS_ROW(upsample_bicubic2d_out,
           interpolate(out, self, Cubic, {scales_h, scales_w}, "upsample_bicubic2d", align_corners))
ANYMPS_ROW(upsample_bicubic2d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Cubic, {scales_h, scales_w},
                                "upsample_bicubic2d_backward", align_corners))
ANYMPS_ROW(_upsample_bilinear2d_aa_out, interpolate(out, self, LinearAntialias, {scales_h, scales_w},
                                                    "_upsample_bilinear2d_aa", align_corners))
ANYMPS_ROW(_upsample_bilinear2d_aa_backward_grad_input,
           interpolate_backward(grad_input, grad_output, LinearAntialias, {scales_h, scales_w},
                                "_upsample_bilinear2d_aa_backward", align_corners))
ANYMPS_ROW(_upsample_bicubic2d_aa_out, interpolate(out, self, CubicAntialias, {scales_h, scales_w},
                                                   "_upsample_bicubic2d_aa", align_corners))
ANYMPS_ROW(_upsample_bicubic2d_aa_backward_grad_input,
           interpolate_backward(grad_input, grad_output, CubicAntialias, {scales_h, scales_w},
                                "_upsample_bicubic2d_aa_backward", align_corners))
ANYMPS_ROW(_upsample_lanczos2d_aa_out, interpolate(out, self, LanczosAntialias, {scales_h, scales_w},
                                                   "_upsample_lanczos2d_aa", align_corners))
ANYMPS_ROW(_upsample_lanczos2d_aa_backward_grad_input,
           interpolate_backward(grad_input, grad_output, LanczosAntialias, {scales_h, scales_w},
                                "_upsample_lanczos2d_aa_backward", align_corners))

}  // namespace anymps::ops
