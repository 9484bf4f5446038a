// Selection and clamping with optional bounds.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/tensor_compare_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/any.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>
#include <initializer_list>
#include <limits>

#include "kernels/float8.h"
#include "kernels/pointwise_rules.h"

namespace anymps::ops {

using kernels::pointwise;
namespace rows = kernels::rows;

Tensor& ANYMPS_FUNC(where_self_out)(const Tensor& condition, const Tensor& self, const Tensor& other,
                                    Tensor& out) {
    const auto common = at::result_type(self, other);
    TORCH_CHECK(out.scalar_type() == common, "Expected out type to be ", common, " but got ",
                out.scalar_type());
    TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
                "where expected condition to be a boolean tensor, but got a tensor with dtype ",
                condition.scalar_type());
    if (condition.scalar_type() == at::kByte) {
        TORCH_WARN_ONCE(
            "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a "
            "future "
            "version of PyTorch. Use a boolean condition instead.");
    }
    if (kernels::is_float8(common)) {  // moved as bytes: not all float8 numbers are normal ones of float32
        const auto bytes = [&](const Tensor& t) { return t.to(common).view(at::kByte); };
        at::native::resize_output(
            out, at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes()));
        Tensor moved = out.view(at::kByte);
        where_self_out(condition, bytes(self), bytes(other), moved);
        return out;
    }
    auto iter = at::TensorIteratorConfig()
                    .check_all_same_dtype(false)
                    .allow_cpu_scalars(true)
                    .add_output(out)
                    .add_const_input(condition)
                    .add_const_input(self)
                    .add_const_input(other)
                    .build();
    pointwise(iter, rows::where, {}, common);
    return out;
}

ANYMPS_ROW(where_self,
           where_self_out(condition, self, other,
                          NewTensor(at::TensorOptions(at::kMPS).dtype(at::result_type(self, other)))))

TORCH_IMPL_FUNC(clamp_out)
(const Tensor& self, at::OptionalScalarRef min, at::OptionalScalarRef max, const Tensor& out) {
    const auto is_nan = [](at::OptionalScalarRef bound) {
        return bound && bound.get().isFloatingPoint() && std::isnan(bound.get().toDouble());
    };
    if (is_nan(min) || is_nan(max)) {
        const_cast<Tensor&>(out).fill_(std::numeric_limits<double>::quiet_NaN());
    } else if (min && max) {
        pointwise(*this, rows::clamp, {min.get(), max.get()});
    } else if (max) {
        pointwise(*this, rows::clamp_max, {max.get()});
    } else {
        pointwise(*this, rows::clamp_min, {min.get()});
    }
}

TORCH_IMPL_FUNC(clamp_Tensor_out)
(const Tensor& self, at::OptionalTensorRef min, at::OptionalTensorRef max, const Tensor& out) {
    pointwise(*this, min && max ? rows::clamp : max ? rows::minimum : rows::maximum);
}

Tensor& ANYMPS_FUNC(nan_to_num_out)(const Tensor& self, std::optional<double> nan,
                                    std::optional<double> posinf, std::optional<double> neginf, Tensor& out) {
    TORCH_CHECK(self.scalar_type() == out.scalar_type(), "nan_to_num: dtype of out: ", out.scalar_type(),
                " should be same as input: ", self.scalar_type());
    if (self.is_complex()) {  // each part by itself
        at::native::resize_output(out, self.sizes());
        const Tensor parts = at::nan_to_num(at::view_as_real(self.resolve_conj()), nan, posinf, neginf);
        out.copy_(at::view_as_complex(parts));
        return out;
    }
    auto iter = at::TensorIterator::unary_op(out, self);
    if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
        kernels::pointwise_copy(iter);
        return out;
    }
    const double greatest = self.scalar_type() == at::kHalf       ? 65504.0
                            : self.scalar_type() == at::kBFloat16 ? 0x1.fep127
                                                                  : std::numeric_limits<float>::max();
    pointwise(iter, rows::nan_to_num,
              {nan.value_or(0), posinf.value_or(greatest), neginf.value_or(-greatest)});
    return out;
}

namespace {

void masked_fill(const Tensor& self, const Tensor& mask, std::initializer_list<Scalar> numbers,
                 const Tensor& value);

// Elements that lie in one place are filled where the mask has any of them.
void masked_fill_expanded(const Tensor& self, const Tensor& mask, std::initializer_list<Scalar> numbers,
                          const Tensor& value) {
    TORCH_WARN(
        "Use of masked_fill_ on expanded tensors is deprecated. Please clone() the tensor before performing "
        "this operation. This also applies to advanced indexing e.g. tensor[mask] = scalar");
    Tensor place = self, any = mask.expand(self.sizes());
    for (int64_t d = 0; d < self.dim(); ++d) {
        if (self.stride(d) != 0 || self.size(d) <= 1) continue;
        place = place.narrow(d, 0, 1);
        any = any.any(d, /*keepdim=*/true);
    }
    masked_fill(place, any, numbers, value);
}

// With a number, or with a tensor of one on the device.
void masked_fill(const Tensor& self, const Tensor& mask, std::initializer_list<Scalar> numbers,
                 const Tensor& value) {
    TORCH_CHECK(self.device() == mask.device(),
                "expected self and mask to be on the same device, but got mask on ", mask.device(),
                " and self on ", self.device());
    TORCH_CHECK(mask.scalar_type() == at::kBool,
                "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
    at::assert_no_overlap(self, mask);
    if (at::has_internal_overlap(self) == at::MemOverlap::Yes)
        return masked_fill_expanded(self, mask, numbers, value);
    at::TensorIteratorConfig config;
    config.set_check_mem_overlap(false)
        .check_all_same_dtype(false)
        .resize_outputs(false)
        .add_output(self)
        .add_const_input(self)
        .add_const_input(mask);
    if (value.defined()) config.add_const_input(value);
    auto iter = config.build();
    pointwise(iter, rows::masked_fill, numbers, self.scalar_type());
}

}  // namespace

Tensor& ANYMPS_FUNC(masked_fill__Scalar)(Tensor& self, const Tensor& mask, const Scalar& value) {
    masked_fill(self, mask, {value}, {});
    return self;
}

Tensor& ANYMPS_FUNC(masked_fill__Tensor)(Tensor& self, const Tensor& mask, const Tensor& value) {
    TORCH_CHECK(value.dim() == 0,
                "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(),
                " dimension(s).");
    // A value that might not fit is looked at, as on the CPU.
    const bool large = self.scalar_type() == at::kHalf && at::isIntegralType(value.scalar_type(), false);
    const bool fits =
        c10::promoteTypes(self.scalar_type(), value.scalar_type()) == self.scalar_type() && !large;
    if (!value.is_mps() || !fits) return masked_fill__Scalar(self, mask, value.item());
    masked_fill(self, mask, {}, value);
    return self;
}

}  // namespace anymps::ops
