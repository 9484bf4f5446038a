// One value from the device to the host.
#include <anymps/ops/scalar_ops.h>

#include <c10/core/Scalar.h>

#include "kernels/check_dtype.h"
#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

template <class T>
T download(const Tensor& self) {
    T value;
    runtime::encoder().download(&value, kernels::address(self), sizeof(T));
    return value;
}

}  // namespace

// The value of a tensor of one element. Waits for everything that was recorded before.
Scalar ANYMPS_FUNC(_local_scalar_dense)(const Tensor& self) {
    TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
    switch (self.scalar_type()) {
        case at::kBool:
            return Scalar(download<uint8_t>(self) != 0);
        case at::kByte:
            return download<uint8_t>(self);
        case at::kChar:
            return download<int8_t>(self);
        case at::kShort:
            return download<int16_t>(self);
        case at::kInt:
            return download<int32_t>(self);
        case at::kLong:
            return download<int64_t>(self);
        case at::kUInt16:
            return download<uint16_t>(self);
        case at::kUInt32:
            return download<uint32_t>(self);
        case at::kUInt64:
            return download<uint64_t>(self);
        case at::kHalf:
            return download<at::Half>(self);
        case at::kBFloat16:
            return download<at::BFloat16>(self);
        case at::kFloat:
            return download<float>(self);
        case at::kComplexHalf:
            return download<c10::complex<at::Half>>(self);
        case at::kComplexFloat:
            return download<c10::complex<float>>(self);
        case at::kFloat8_e4m3fn:
            return download<at::Float8_e4m3fn>(self);
        case at::kFloat8_e5m2:
            return download<at::Float8_e5m2>(self);
        case at::kFloat8_e4m3fnuz:
            return download<at::Float8_e4m3fnuz>(self);
        case at::kFloat8_e5m2fnuz:
            return download<at::Float8_e5m2fnuz>(self);
        case at::kFloat8_e8m0fnu:
            return download<at::Float8_e8m0fnu>(self);
        default:
            kernels::raise_not_implemented(self.scalar_type(), "_local_scalar_dense");
    }
}

}  // namespace anymps::ops
