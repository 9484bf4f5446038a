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

TORCH_IMPL_FUNC(avg_pool2d_out)
(const Tensor& self, int64_t kH, int64_t kW, int64_t dH, int64_t dW, int64_t padH, int64_t padW,
 bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor_override, const Tensor& out) {
    avg_pool("avg_pool2d", averages(2, {kH, kW}, {dH, dW}, {padH, padW}, count_include_pad, divisor_override),
             self, out);
}

TORCH_IMPL_FUNC(avg_pool2d_backward_grad_input)
(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size, IntArrayRef stride,
 IntArrayRef padding, bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor_override,
 const Tensor& grad_input) {
    avg_pool_backward("avg_pool2d_backward",
                      averages(2, kernel_size, stride, padding, count_include_pad, divisor_override),
                      grad_output, grad_input);
}

TORCH_IMPL_FUNC(avg_pool3d_out)
(const Tensor& self, IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, bool ceil_mode,
 bool count_include_pad, std::optional<int64_t> divisor_override, const Tensor& out) {
    avg_pool("avg_pool3d", averages(3, kernel_size, stride, padding, count_include_pad, divisor_override),
             self, out);
}

TORCH_IMPL_FUNC(avg_pool3d_backward_grad_input)
(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size, IntArrayRef stride,
 IntArrayRef padding, bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor_override,
 const Tensor& grad_input) {
    avg_pool_backward("avg_pool3d_backward",
                      averages(3, kernel_size, stride, padding, count_include_pad, divisor_override),
                      grad_output, grad_input);
}

}  // namespace anymps::ops
