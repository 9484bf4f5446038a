// Products of float8 matrices with scales. The operands become halves, which hold every float8 exactly, their
// product has sums of floats, and the scales are applied to it.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/matmul/scaled_mm_ops.h>

#include <ATen/BlasBackend.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/reciprocal.h>

#include <vector>

#include "kernels/float8.h"
#include "runtime/torch_version.h"

namespace anymps::ops {
namespace {

using at::blas::ScalingType;

// Half cannot hold the powers of two that e8m0fnu is made of.
ScalarType operand_type(const Tensor& a, const Tensor& b) {
    const auto is_power = [](const Tensor& t) { return t.scalar_type() == at::kFloat8_e8m0fnu; };
    return is_power(a) || is_power(b) ? at::kFloat : at::kHalf;
}

void check_shapes(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
    TORCH_CHECK(a.dim() == 2, "mat1 must be a matrix");
    TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix");
    TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
                a.size(1), " and ", b.size(0), "x", b.size(1), ")");
    TORCH_CHECK(!bias || bias->numel() == b.size(1), "Bias must be size ", b.size(1), " but got ",
                bias->numel());
    TORCH_CHECK(kernels::is_float8(a.scalar_type()), "Expected mat1 to be Float8 matrix got ",
                a.scalar_type());
    TORCH_CHECK(kernels::is_float8(b.scalar_type()), "Expected mat2 to be Float8 matrix got ",
                b.scalar_type());
}

bool scales_tensor(const Tensor& scale) {
    return scale.scalar_type() == at::kFloat && scale.numel() == 1;
}

// A scale a row of [rows, ...]; transposed where it is for columns.
bool scales_rows(const Tensor& scale, int64_t rows) {
    return scale.scalar_type() == at::kFloat && scale.dim() == 2 && scale.size(0) == rows &&
           scale.size(1) == 1 && scale.is_contiguous();
}

void raise_invalid(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b) {
    TORCH_CHECK_VALUE(
        false, "Invalid scaling configuration.\n",
        "- For TensorWise scaling, a and b should be float8, scales should be float and singletons.\n",
        "- For RowWise scaling, a and b should be float8, scales should be float, scale_a should be (",
        a.size(0), ", 1) and scale_b should be (1, ", b.size(1), "), and both should be contiguous.\n",
        "Got mat_a.dtype()=", a.scalar_type(), ", scale_a.dtype()=", scale_a.scalar_type(),
        ", scale_a.size()=", scale_a.sizes(), ", scale_a.stride()=", scale_a.strides(),
        ", mat_b.dtype()=", b.scalar_type(), ", scale_b.dtype()=", scale_b.scalar_type(),
        ", scale_b.size()=", scale_b.sizes(), " and scale_b.stride()=", scale_b.strides());
}

// out = (a b) * scales + bias, divided by result_scale where that is given. One scale a matrix, or one a row
// of a and one a column of b.
void multiply(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
              const std::optional<Tensor>& bias, const std::optional<Tensor>& result_scale, Tensor& out) {
    const bool by_row = scale_a.numel() != 1 || scale_b.numel() != 1;
    const ScalarType type = operand_type(a, b);
    const Tensor left = a.to(type), right = b.to(type);
    const Tensor product = type == at::kHalf ? at::mm(left, right, at::kFloat) : at::mm(left, right);
    const bool narrows = kernels::is_float8(out.scalar_type());
    Tensor result = narrows ? at::empty(out.sizes(), out.options().dtype(at::kFloat)) : out;
    at::TensorIteratorConfig config;
    config.check_all_same_dtype(false)
        .resize_outputs(false)
        .add_output(result)
        .add_const_input(product)
        .add_owned_const_input(by_row ? scale_a.reshape({a.size(0), 1}) : scale_a.reshape({}))
        .add_owned_const_input(by_row ? scale_b.reshape({1, b.size(1)}) : scale_b.reshape({}));
    if (bias) config.add_owned_const_input(bias->reshape({b.size(1)}));
    auto iter = config.build();
    if (bias)
        kernels::pointwise(iter, kernels::rows::scaled_mm, {}, at::kFloat);
    else
        kernels::pointwise(iter, kernels::rows::scaled_mm, {0}, at::kFloat);
    if (!narrows) return;
    if (result_scale) result.mul_(at::reciprocal(*result_scale));
    out.copy_(result);
}

}  // namespace

// self [m, k], mat2 [k, n], both float8. scale_a and scale_b: a float each, or [m, 1] and [1, n].
// scale_result divides results of a float8 dtype.
Tensor& ANYMPS_FUNC(_scaled_mm_out)(const Tensor& self, const Tensor& mat2, const Tensor& scale_a,
                                    const Tensor& scale_b, const std::optional<Tensor>& bias,
                                    const std::optional<Tensor>& scale_result,
                                    std::optional<ScalarType> out_dtype, bool use_fast_accum, Tensor& out) {
    check_shapes(self, mat2, bias);
    TORCH_CHECK(!scale_result || (scale_result->numel() == 1 && scale_result->scalar_type() == at::kFloat),
                "scale_result must be a float scalar");
    TORCH_CHECK(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
    TORCH_CHECK(at::isFloatingType(out.scalar_type()),
                "_scaled_mm on MPS: out_dtype must be a floating point dtype, not ", out.scalar_type());
    const bool whole = scales_tensor(scale_a) && scales_tensor(scale_b);
    const bool rows =
        scales_rows(scale_a, self.size(0)) && scale_b.dim() == 2 && scales_rows(scale_b.t(), mat2.size(1));
    if (!whole && !rows) raise_invalid(self, mat2, scale_a, scale_b);
    at::native::resize_output(out, {self.size(0), mat2.size(1)});
    multiply(self, mat2, scale_a, scale_b, bias, scale_result, out);
    return out;
}

ANYMPS_ROW(_scaled_mm,
           _scaled_mm_out(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum,
                          NewTensor(self.options().dtype(out_dtype.value_or(self.scalar_type())))))

#if ANYMPS_TORCH_UNTIL(2, 13)
using Scales = TensorList;
#else
using Scales = const at::ITensorListRef&;  // a structured operator's
#endif

// The same with a recipe of at::blas::ScalingType an operand: a scale a tensor, or one a row of self and a
// column of mat2, as on the CPU.
Tensor& ANYMPS_FUNC(_scaled_mm_v2_out)(const Tensor& self, const Tensor& mat2, Scales scales_a,
                                       IntArrayRef recipe_a, IntArrayRef swizzle_a, Scales scales_b,
                                       IntArrayRef recipe_b, IntArrayRef swizzle_b,
                                       const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                                       IntArrayRef contraction_dim, bool use_fast_accum, Tensor& out) {
    const std::vector<Tensor> scale_a(scales_a.begin(), scales_a.end()),
        scale_b(scales_b.begin(), scales_b.end());
    TORCH_CHECK_VALUE(self.dim() == 2, "mat_a must be a matrix");
    TORCH_CHECK_VALUE(mat2.dim() == 2, "mat_b must be a matrix");
    TORCH_CHECK_VALUE(
        contraction_dim.empty() ||
            (contraction_dim.size() == 2 && contraction_dim[0] % 2 != 0 && contraction_dim[1] % 2 == 0),
        "_scaled_mm_v2 on MPS: the last dimension of mat_a is contracted with the first of mat_b");
    check_shapes(self, mat2, bias);
    TORCH_CHECK_VALUE((swizzle_a.empty() || swizzle_a[0] == 0) && (swizzle_b.empty() || swizzle_b[0] == 0),
                      "MPS does not support swizzle.");
    const auto is_recipe = [&](ScalingType type) {
        return recipe_a.size() == 1 && recipe_b.size() == 1 && scale_a.size() == 1 && scale_b.size() == 1 &&
               recipe_a[0] == static_cast<int64_t>(type) && recipe_b[0] == static_cast<int64_t>(type);
    };
    const bool whole =
        is_recipe(ScalingType::TensorWise) && scales_tensor(scale_a[0]) && scales_tensor(scale_b[0]);
    const bool rows = is_recipe(ScalingType::RowWise) && scale_a[0].numel() == self.size(0) &&
                      scale_b[0].numel() == mat2.size(1) && scale_a[0].scalar_type() == at::kFloat &&
                      scale_b[0].scalar_type() == at::kFloat;
    if (!whole && !rows) {
        const auto first = [](TensorList scales) { return scales.empty() ? Tensor() : scales[0]; };
        TORCH_CHECK_VALUE(!scale_a.empty() && !scale_b.empty(), "Invalid scaling configuration: no scales.");
        raise_invalid(self, mat2, first(scale_a), first(scale_b));
    }
    TORCH_CHECK(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
    at::native::resize_output(out, {self.size(0), mat2.size(1)});
    multiply(self, mat2, scale_a[0], scale_b[0], bias, std::nullopt, out);
    return out;
}

ANYMPS_ROW(_scaled_mm_v2,
           _scaled_mm_v2_out(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias,
                             out_dtype, contraction_dim, use_fast_accum,
                             NewTensor(self.options().dtype(out_dtype.value_or(self.scalar_type())))))

}  // namespace anymps::ops
