// softmax, log_softmax and their gradients: one kernel each way, any dimension, any strides.
#include <ATen/WrapDimUtils.h>
#include <anymps/ops/softmax_ops.h>
#include <c10/core/ScalarType.h>

#include "kernels/row_launcher.h"

namespace anymps::ops {

namespace {

constexpr auto kWrite = kernels::RowTensor::kWrite;

void check_floating(const Tensor& self, bool log) {
    TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", log ? "log_" : "",
                                "softmax_kernel_impl\" not implemented for '", self.scalar_type(), "'");
}

void forward(const Tensor& self, int64_t dim, const Tensor& out, bool log) {
    check_floating(self, log);
    kernels::launch_rows("softmax_forward", at::maybe_wrap_dim(dim, self.dim()), {{self}, {out, kWrite}}, {},
                         {log});
}

void backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor& grad_input, bool log) {
    check_floating(grad, log);
    kernels::launch_rows("softmax_backward", at::maybe_wrap_dim(dim, grad.dim()),
                         {{grad}, {output}, {grad_input, kWrite}}, {}, {log});
}

}  // namespace

// half_to_float: f16 in, f32 out; the kernel converts as it stores.
TORCH_IMPL_FUNC(_softmax_out)(const Tensor& self, int64_t dim, bool half_to_float, const Tensor& out) {
    forward(self, dim, out, false);
}

TORCH_IMPL_FUNC(_log_softmax_out)(const Tensor& self, int64_t dim, bool half_to_float, const Tensor& out) {
    forward(self, dim, out, true);
}

TORCH_IMPL_FUNC(_softmax_backward_data_out)
(const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype,
 const Tensor& grad_input) {
    backward(grad_output, output, dim, grad_input, false);
}

TORCH_IMPL_FUNC(_log_softmax_backward_data_out)
(const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype,
 const Tensor& grad_input) {
    backward(grad_output, output, dim, grad_input, true);
}

}  // namespace anymps::ops
