// Unary operators whose arguments need work on the host.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/unary_ops_ops.h>

#include <ATen/TensorIterator.h>
#include <ATen/ops/mvlgamma_native.h>

#include "runtime/device.h"

namespace anymps::ops {

TORCH_IMPL_FUNC(round_decimals_out)(const Tensor& self, int64_t decimals, const Tensor& out) {
    if (decimals == 0) {
        kernels::pointwise(*this, kernels::rows::round);
    } else {
        kernels::pointwise(*this, kernels::rows::round_decimals, {decimals});
    }
}

// Derivatives of digamma. A driver that runs on CPU cores is given one of the three formulas to compile.
TORCH_IMPL_FUNC(polygamma_out)(int64_t n, const Tensor& self, const Tensor& out) {
    const bool apart = runtime::device().info().is_software && at::isFloatingType(common_dtype());
    if (apart && n == 0) return kernels::pointwise(*this, kernels::rows::digamma);
    if (apart && n == 1) return kernels::pointwise(*this, kernels::rows::trigamma);
    kernels::pointwise(*this, kernels::rows::polygamma, {n});
}

// self = mantissa * 2^exponent, 0.5 <= |mantissa| < 1; 0, infinities and NaN have the exponent 0.
std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(frexp_Tensor_out)(const Tensor& self, Tensor& mantissa,
                                                           Tensor& exponent) {
    TORCH_CHECK(at::isFloatingType(self.scalar_type()), "torch.frexp() only supports floating-point dtypes");
    TORCH_CHECK(mantissa.dtype() == self.dtype(), "torch.frexp() expects mantissa to have dtype ",
                self.dtype(), " but got ", mantissa.dtype());
    TORCH_CHECK(exponent.dtype() == at::kInt, "torch.frexp() expects exponent to have int dtype but got ",
                exponent.dtype());
    auto iter = at::TensorIteratorConfig()
                    .check_all_same_dtype(false)
                    .add_output(mantissa)
                    .add_output(exponent)
                    .add_const_input(self)
                    .build();
    kernels::pointwise(iter, kernels::rows::frexp, {}, self.scalar_type());
    return {mantissa, exponent};
}

// A sum of lgamma over shifted arguments, which ATen builds from other operators.
ANYMPS_ROW(mvlgamma_out, at::native::mvlgamma_out(self, p, out))

}  // namespace anymps::ops
