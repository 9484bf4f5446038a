// Nearest-neighbour interpolation; `exact` takes the pixel's centre.
#include <anymps/ops/resample/upsample_nearest_ops.h>

#include "ops/resample/interpolation.h"

namespace anymps::ops {

using enum ResampleMode;

ANYMPS_ROW(upsample_nearest1d_out, interpolate(out, self, Nearest, {scales}, "upsample_nearest1d"))
ANYMPS_ROW(upsample_nearest1d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Nearest, {scales}, "upsample_nearest1d_backward"))
ANYMPS_ROW(_upsample_nearest_exact1d_out,
           interpolate(out, self, NearestExact, {scales}, "_upsample_nearest_exact1d"))
ANYMPS_ROW(_upsample_nearest_exact1d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, NearestExact, {scales},
                                "_upsample_nearest_exact1d_backward"))
ANYMPS_ROW(upsample_nearest2d_out,
           interpolate(out, self, Nearest, {scales_h, scales_w}, "upsample_nearest2d"))
ANYMPS_ROW(upsample_nearest2d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Nearest, {scales_h, scales_w},
                                "upsample_nearest2d_backward"))
ANYMPS_ROW(_upsample_nearest_exact2d_out,
           interpolate(out, self, NearestExact, {scales_h, scales_w}, "_upsample_nearest_exact2d"))
ANYMPS_ROW(_upsample_nearest_exact2d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, NearestExact, {scales_h, scales_w},
                                "_upsample_nearest_exact2d_backward"))
ANYMPS_ROW(upsample_nearest3d_out,
           interpolate(out, self, Nearest, {scales_d, scales_h, scales_w}, "upsample_nearest3d"))
ANYMPS_ROW(upsample_nearest3d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, Nearest, {scales_d, scales_h, scales_w},
                                "upsample_nearest3d_backward"))
ANYMPS_ROW(_upsample_nearest_exact3d_out,
           interpolate(out, self, NearestExact, {scales_d, scales_h, scales_w}, "_upsample_nearest_exact3d"))
ANYMPS_ROW(_upsample_nearest_exact3d_backward_grad_input,
           interpolate_backward(grad_input, grad_output, NearestExact, {scales_d, scales_h, scales_w},
                                "_upsample_nearest_exact3d_backward"))

}  // namespace anymps::ops
