// fill_ and zero_: constant values over any layout.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/fill_ops.h>

#include <ATen/TensorIterator.h>
#include <c10/core/Scalar.h>

#include <bit>

#include "kernels/check_dtype.h"
#include "kernels/kernel_call.h"
#include "kernels/pointwise_launcher.h"

namespace anymps::ops {
namespace {

// The bits of a value in a storage dtype, as the signed integer of its size. Raises as the CPU does where it
// does not fit.
int64_t bits_of(const Scalar& value, ScalarType dtype) {
    switch (dtype) {
        case at::kBool:
            return value.to<bool>();
        case at::kByte:
            return static_cast<int8_t>(value.to<uint8_t>());
        case at::kChar:
            return value.to<int8_t>();
        case at::kShort:
            return value.to<int16_t>();
        case at::kInt:
            return value.to<int32_t>();
        case at::kLong:
            return value.to<int64_t>();
        case at::kUInt16:
            return static_cast<int16_t>(value.to<uint16_t>());
        case at::kUInt32:
            return static_cast<int32_t>(value.to<uint32_t>());
        case at::kUInt64:
            return static_cast<int64_t>(value.to<uint64_t>());
        case at::kHalf:
            return static_cast<int16_t>(value.to<at::Half>().x);
        case at::kBFloat16:
            return static_cast<int16_t>(value.to<at::BFloat16>().x);
        case at::kFloat:
            return std::bit_cast<int32_t>(value.to<float>());
        case at::kComplexHalf:
            return std::bit_cast<int32_t>(c10::complex<at::Half>(value.to<c10::complex<float>>()));
        case at::kComplexFloat:
            return std::bit_cast<int64_t>(value.to<c10::complex<float>>());
        case at::kFloat8_e4m3fn:
            return static_cast<int8_t>(value.to<at::Float8_e4m3fn>().x);
        case at::kFloat8_e5m2:
            return static_cast<int8_t>(value.to<at::Float8_e5m2>().x);
        case at::kFloat8_e4m3fnuz:
            return static_cast<int8_t>(value.to<at::Float8_e4m3fnuz>().x);
        case at::kFloat8_e5m2fnuz:
            return static_cast<int8_t>(value.to<at::Float8_e5m2fnuz>().x);
        case at::kFloat8_e8m0fnu:
            return static_cast<int8_t>(value.to<at::Float8_e8m0fnu>().x);
        default:
            kernels::raise_not_implemented(dtype, "fill_");
    }
}

// A single half becomes infinite where more of them raise, as on the CPU: x[mask] = -1e9 is such a fill.
Scalar as_one(const Scalar& value, ScalarType dtype) {
    if (dtype != at::kHalf && dtype != at::kBFloat16) return value;
    const auto number = static_cast<float>(value.toDouble());
    return dtype == at::kHalf ? static_cast<float>(at::Half(number))
                              : static_cast<float>(at::BFloat16(number));
}

void fill(const Tensor& self, const Scalar& value) {
    if (self.numel() == 0) return;
    const int64_t bits =
        bits_of(self.numel() == 1 ? as_one(value, self.scalar_type()) : value, self.scalar_type());
    const uint64_t address = kernels::address(self);
    if (bits == 0 && self.is_non_overlapping_and_dense() && address % 4 == 0 && self.nbytes() % 4 == 0) {
        runtime::encoder().fill(address, 0, self.nbytes());
        return;
    }
    // Filling twice does no harm: overlapping memory is allowed, as on the CPU.
    auto iter = at::TensorIteratorConfig()
                    .set_check_mem_overlap(false)
                    .check_all_same_dtype(false)
                    .add_output(self)
                    .resize_outputs(false)
                    .build();
    kernels::pointwise(iter, kernels::rows::copy_bits, {bits}, kernels::integer_of_size(self.element_size()));
}

}  // namespace

Tensor& ANYMPS_FUNC(fill__Scalar)(Tensor& self, const Scalar& value) {
    fill(self, value);
    return self;
}

Tensor& ANYMPS_FUNC(fill__Tensor)(Tensor& self, const Tensor& value) {
    TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
                value.dim(), " dimensions.");
    if (self.device() != value.device()) {
        fill(self, value.item());
        return self;
    }
    return self.copy_(self.is_alias_of(value) ? value.clone() : value);
}

Tensor& ANYMPS_FUNC(zero_)(Tensor& self) {
    fill(self, 0);
    return self;
}

}  // namespace anymps::ops
