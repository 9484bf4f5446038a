// Powers by a number: the exponents that are products or roots take those.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/pow_ops.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/pow.h>

namespace anymps::ops {

using kernels::pointwise;
namespace rows = kernels::rows;

TORCH_IMPL_FUNC(pow_Tensor_Scalar_out)(const Tensor& self, const Scalar& exponent, const Tensor& out) {
    if (exponent.equal(0.0) || exponent.equal(false)) {
        const_cast<Tensor&>(out).fill_(1);
        return;
    }
    if (exponent.equal(1.0) || exponent.equal(true)) {
        const_cast<Tensor&>(out).copy_(self);
        return;
    }
    if (exponent.equal(2.0)) return pointwise(*this, rows::square);
    if (exponent.equal(3.0)) return pointwise(*this, rows::cube);
    if (!c10::isIntegralType(common_dtype(), /*includeBool=*/true)) {
        if (exponent.equal(0.5)) return pointwise(*this, rows::sqrt);
        if (exponent.equal(-0.5)) return pointwise(*this, rows::rsqrt);
        if (exponent.equal(-1.0)) return pointwise(*this, rows::reciprocal);
        if (exponent.equal(-2.0)) return pointwise(*this, rows::reciprocal_square);
    }
    pointwise(*this, rows::pow, {exponent});
}

TORCH_IMPL_FUNC(pow_Scalar_out)(const Scalar& self, const Tensor& exponent, const Tensor& out) {
    if (self.equal(1.0)) {
        const_cast<Tensor&>(out).fill_(1);
    } else {
        at::pow_out(const_cast<Tensor&>(out), at::native::wrapped_scalar_tensor(self), exponent);
    }
}

}  // namespace anymps::ops
