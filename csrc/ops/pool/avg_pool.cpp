// avg_pool2d, avg_pool3d and their gradients; avg_pool1d is made of the first.
#include <anymps/ops/pool/avg_pool_ops.h>

#include "ops/pool/windows.h"

namespace anymps::ops {
namespace {

Windows averages(int64_t spatial, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                 bool count_include_pad, std::optional<int64_t> divisor) {
    Windows windows = Windows::fixed(spatial, kernel, stride, padding, {1});
    windows.count_padding = count_include_pad;
    windows.divisor = static_cast<int32_t>(divisor.value_or(0));
    return windows;
}

}  // namespace

ANYMPS_ROW(avg_pool2d_out,
           avg_pool("avg_pool2d",
                    averages(2, {kH, kW}, {dH, dW}, {padH, padW}, count_include_pad, divisor_override), self,
                    out))
ANYMPS_ROW(avg_pool2d_backward_grad_input,
           avg_pool_backward("avg_pool2d_backward",
                             averages(2, kernel_size, stride, padding, count_include_pad, divisor_override),
                             grad_output, grad_input))
ANYMPS_ROW(avg_pool3d_out,
           avg_pool("avg_pool3d",
                    averages(3, kernel_size, stride, padding, count_include_pad, divisor_override), self,
                    out))
ANYMPS_ROW(avg_pool3d_backward_grad_input,
           avg_pool_backward("avg_pool3d_backward",
                             averages(3, kernel_size, stride, padding, count_include_pad, divisor_override),
                             grad_output, grad_input))

}  // namespace anymps::ops
