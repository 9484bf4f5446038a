// Unary operators whose arguments need work on the host.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/unary_ops_ops.h>

#include <ATen/ops/mvlgamma_native.h>

namespace anymps::ops {

TORCH_IMPL_FUNC(round_decimals_out)(const Tensor& self, int64_t decimals, const Tensor& out) {
    if (decimals == 0) {
        kernels::pointwise(*this, kernels::rows::round);
    } else {
        kernels::pointwise(*this, kernels::rows::round_decimals, {decimals});
    }
}

// A sum of lgamma over shifted arguments, which ATen builds from other operators.
Tensor& ANYMPS_FUNC(mvlgamma_out)(const Tensor& self, int64_t p, Tensor& out) {
    return at::native::mvlgamma_out(self, p, out);
}

}  // namespace anymps::ops
