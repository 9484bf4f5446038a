// Binary operators that are others with their arguments changed.
#include <anymps/ops/binary_ops_ops.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sub.h>

namespace anymps::ops {

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

}  // namespace anymps::ops
