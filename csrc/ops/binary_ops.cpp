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
    const auto type = at::result_type(self, other);
    TORCH_CHECK(at::isComplexType(type) || !at::isIntegralType(out.scalar_type(), true),
                "ldexp can't be cast to the desired output type ", out.scalar_type());
    if (!at::isFloatingType(self.scalar_type()) || !at::isIntegralType(other.scalar_type(), false))
        return at::mul_out(out, self, at::pow(2.0, other));
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

ANYMPS_ROW(_add_relu_Tensor, rectify_(NewTensor(at::add(self, other, alpha))))
ANYMPS_ROW(_add_relu__Tensor, rectify_(self.add_(other, alpha)))
ANYMPS_ROW(_add_relu_out, rectify_(at::add_out(out, self, other, alpha)))
ANYMPS_ROW(_add_relu_Scalar, _add_relu_Tensor(self, at::native::wrapped_scalar_tensor(other), alpha))
ANYMPS_ROW(_add_relu__Scalar, _add_relu__Tensor(self, at::native::wrapped_scalar_tensor(other), alpha))
ANYMPS_ROW(rsub_Tensor, at::sub(other, self, alpha))
ANYMPS_ROW(remainder_Scalar_Tensor, at::remainder(at::native::wrapped_scalar_tensor(self), other))
ANYMPS_ROW(__lshift___Scalar, at::bitwise_left_shift(self, other))
ANYMPS_ROW(__lshift___Tensor, at::bitwise_left_shift(self, other))
ANYMPS_ROW(__ilshift___Scalar, self.bitwise_left_shift_(other))
ANYMPS_ROW(__ilshift___Tensor, self.bitwise_left_shift_(other))
ANYMPS_ROW(__rshift___Scalar, at::bitwise_right_shift(self, other))
ANYMPS_ROW(__rshift___Tensor, at::bitwise_right_shift(self, other))
ANYMPS_ROW(__irshift___Scalar, self.bitwise_right_shift_(other))
ANYMPS_ROW(__irshift___Tensor, self.bitwise_right_shift_(other))

Tensor ANYMPS_FUNC(ldexp_Tensor)(const Tensor& self, const Tensor& other) {
    const auto type = at::result_type(self, other);
    const bool floats = at::isFloatingType(type) || at::isComplexType(type);
    const Tensor& on_device = self.is_mps() ? self : other;  // a number may lie on the CPU
    Tensor out =
        at::empty({0}, on_device.options().dtype(floats ? type : at::get_default_dtype_as_scalartype()));
    return ldexp_into(self, other, out);
}
ANYMPS_ROW(ldexp_, ldexp_into(self, other, self))
ANYMPS_ROW(ldexp_out, ldexp_into(self, other, out))

}  // namespace anymps::ops
