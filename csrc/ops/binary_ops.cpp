// Binary operators that are others with their arguments changed, and ldexp.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/binary_ops_ops.h>

#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub.h>

#include <limits>

namespace anymps::ops {
namespace {

// Integer exponents are exact for all of them; others, and integers, go by PyTorch's definition.
Tensor& ldexp_into(const Tensor& self, const Tensor& other, Tensor& out) {
    if (!at::isFloatingType(self.scalar_type()) || !at::isIntegralType(other.scalar_type(), false))
        return at::mul_out(out, self, at::pow(2.0, other));
    const auto type = at::result_type(self, other);
    TORCH_CHECK(at::canCast(type, out.scalar_type()), "result type ", type,
                " can't be cast to the desired output type ", out.scalar_type());
    auto iter = at::TensorIteratorConfig()
                    .add_output(out)
                    .add_const_input(self)
                    .add_const_input(other)
                    .check_all_same_dtype(false)
                    .allow_cpu_scalars(true)
                    .build();
    kernels::pointwise(iter, kernels::rows::ldexp, {}, at::kFloat);
    return out;
}

// PyTorch's own keeps sums below infinity.
Tensor& rectify_(Tensor& sum) {
    if (!sum.is_floating_point()) return at::relu_(sum);
    return at::clamp_(sum, 0, std::numeric_limits<float>::max());
}

}  // namespace

Tensor ANYMPS_FUNC(_add_relu_Tensor)(const Tensor& self, const Tensor& other, const Scalar& alpha) {
    Tensor sum = at::add(self, other, alpha);
    return rectify_(sum);
}
Tensor& ANYMPS_FUNC(_add_relu__Tensor)(Tensor& self, const Tensor& other, const Scalar& alpha) {
    return rectify_(self.add_(other, alpha));
}
Tensor& ANYMPS_FUNC(_add_relu_out)(const Tensor& self, const Tensor& other, const Scalar& alpha,
                                   Tensor& out) {
    return rectify_(at::add_out(out, self, other, alpha));
}
Tensor ANYMPS_FUNC(_add_relu_Scalar)(const Tensor& self, const Scalar& other, const Scalar& alpha) {
    return _add_relu_Tensor(self, at::native::wrapped_scalar_tensor(other), alpha);
}
Tensor& ANYMPS_FUNC(_add_relu__Scalar)(Tensor& self, const Scalar& other, const Scalar& alpha) {
    return _add_relu__Tensor(self, at::native::wrapped_scalar_tensor(other), alpha);
}

Tensor ANYMPS_FUNC(rsub_Tensor)(const Tensor& self, const Tensor& other, const Scalar& alpha) {
    return at::sub(other, self, alpha);
}

Tensor ANYMPS_FUNC(remainder_Scalar_Tensor)(const Scalar& self, const Tensor& other) {
    return at::remainder(at::native::wrapped_scalar_tensor(self), other);
}

Tensor ANYMPS_FUNC(__lshift___Scalar)(const Tensor& self, const Scalar& other) {
    return at::bitwise_left_shift(self, other);
}
Tensor ANYMPS_FUNC(__lshift___Tensor)(const Tensor& self, const Tensor& other) {
    return at::bitwise_left_shift(self, other);
}
Tensor& ANYMPS_FUNC(__ilshift___Scalar)(Tensor& self, const Scalar& other) {
    return self.bitwise_left_shift_(other);
}
Tensor& ANYMPS_FUNC(__ilshift___Tensor)(Tensor& self, const Tensor& other) {
    return self.bitwise_left_shift_(other);
}
Tensor ANYMPS_FUNC(__rshift___Scalar)(const Tensor& self, const Scalar& other) {
    return at::bitwise_right_shift(self, other);
}
Tensor ANYMPS_FUNC(__rshift___Tensor)(const Tensor& self, const Tensor& other) {
    return at::bitwise_right_shift(self, other);
}
Tensor& ANYMPS_FUNC(__irshift___Scalar)(Tensor& self, const Scalar& other) {
    return self.bitwise_right_shift_(other);
}
Tensor& ANYMPS_FUNC(__irshift___Tensor)(Tensor& self, const Tensor& other) {
    return self.bitwise_right_shift_(other);
}

Tensor ANYMPS_FUNC(ldexp_Tensor)(const Tensor& self, const Tensor& other) {
    const auto type = at::result_type(self, other);
    const bool floats = at::isFloatingType(type) || at::isComplexType(type);
    Tensor out = at::empty({0}, self.options().dtype(floats ? type : at::get_default_dtype_as_scalartype()));
    return ldexp_into(self, other, out);
}
Tensor& ANYMPS_FUNC(ldexp_)(Tensor& self, const Tensor& other) {
    return ldexp_into(self, other, self);
}
Tensor& ANYMPS_FUNC(ldexp_out)(const Tensor& self, const Tensor& other, Tensor& out) {
    return ldexp_into(self, other, out);
}

}  // namespace anymps::ops
