// Reductions that are not structured in ATen, or that choose between rows of reduction.yaml.
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp_native.h>
#include <ATen/ops/std_mean.h>
#include <ATen/ops/var.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/view_as_real.h>
#include <anymps/ops/reduction/reduction_ops.h>
#include <anymps/ops/reduction_rows.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"
#include "ops/same_device.h"

namespace anymps::ops {

namespace {

using kernels::DimMask;
using kernels::ReductionRow;
using Shape = c10::SmallVector<int64_t, 6>;

Tensor empty_like_shape(const Tensor& self, IntArrayRef shape, ScalarType dtype) {
    return Tensor(at::detail::empty_mps(shape, self.options().dtype(dtype)));
}

Tensor empty_result(const Tensor& self, const DimMask& dims, bool keepdim, ScalarType dtype) {
    return empty_like_shape(self, kernels::reduced_shape(self, dims, keepdim), dtype);
}

// The dtype of a sum or product: integers are summed up as int64.
ScalarType promoted(const Tensor& self, std::optional<ScalarType> dtype) {
    if (dtype) return *dtype;
    return at::isIntegralType(self.scalar_type(), /*includeBool=*/true) ? at::kLong : self.scalar_type();
}

void warn_of_aminmax() {
    TORCH_WARN_ONCE(
        "_aminmax is deprecated as of PyTorch 1.11 and will be removed in a future release. Use aminmax "
        "instead."
        " This warning will only appear once per process.");
}

// --- variance and standard deviation ----------------------------------------------------------------------

struct Variance {
    const char* name;
    bool root;
};

void check_variance(const Variance& op, const Tensor& self, const DimMask& dims, double correction) {
    int64_t count = 1, results = 1;
    for (int64_t d = 0; d < self.dim(); ++d) (dims[d] ? count : results) *= self.size(d);
    if (static_cast<double>(results == 0 ? 0 : count) - correction <= 0) {
        TORCH_WARN(
            op.name,
            "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor "
            "(input numel divided by output numel).");
    }
}

void variance(const Variance& op, const Tensor& self, OptionalIntArrayRef dim,
              const std::optional<Scalar>& correction, const Tensor& result, const Tensor& mean) {
    const double freedom = correction.value_or(1).toDouble();
    const DimMask dims = kernels::dim_mask(self, dim);
    check_variance(op, self, dims, freedom);
    // No elements have no variance, with a negative correction neither.
    const float removed = self.numel() == 0 ? 0.0f : static_cast<float>(freedom);
    kernels::reduce(rows::moments, self, dims, {result, mean}, {removed, op.root ? 1.0f : 0.0f});
}

// PyTorch's own check, whose kind of error depends on its version: the CPU's kernel makes it.
void check_floating(const Variance& op, const Tensor& self, bool with_mean) {
    if (at::isFloatingType(self.scalar_type()) || at::isComplexType(self.scalar_type())) return;
    const Tensor none = at::empty({0}, at::dtype(self.scalar_type()));
    if (!with_mean) {
        at::var(none, at::OptionalIntArrayRef(), std::nullopt);
    } else if (op.root) {
        at::std_mean(none, at::OptionalIntArrayRef(), std::nullopt);
    } else {
        at::var_mean(none, at::OptionalIntArrayRef(), std::nullopt);
    }
}

// That of the real parts and that of the imaginary ones, added up.
Tensor complex_variance(const Variance& op, const Tensor& self, OptionalIntArrayRef dim,
                        const std::optional<Scalar>& correction, bool keepdim);

Tensor variance(const Variance& op, const Tensor& self, OptionalIntArrayRef dim,
                const std::optional<Scalar>& correction, bool keepdim) {
    check_floating(op, self, false);
    if (self.is_complex()) return complex_variance(op, self, dim, correction, keepdim);
    Tensor result = empty_result(self, kernels::dim_mask(self, dim), keepdim, self.scalar_type());
    variance(op, self, dim, correction, result, Tensor());
    return result;
}

Tensor complex_variance(const Variance& op, const Tensor& self, OptionalIntArrayRef dim,
                        const std::optional<Scalar>& correction, bool keepdim) {
    const Tensor parts = at::view_as_real(self.resolve_conj());
    Tensor sum = variance({op.name, false}, parts.select(-1, 0), dim, correction, keepdim);
    sum.add_(variance({op.name, false}, parts.select(-1, 1), dim, correction, keepdim));
    return op.root ? sum.sqrt_() : sum;
}

Tensor& variance_out(const Variance& op, const Tensor& self, OptionalIntArrayRef dim,
                     const std::optional<Scalar>& correction, bool keepdim, Tensor& out) {
    check_same_device(op.name, {{"self", self}, {"out", out}});
    check_floating(op, self, false);
    at::native::resize_output(out, kernels::reduced_shape(self, kernels::dim_mask(self, dim), keepdim));
    TORCH_CHECK(at::canCast(c10::toRealValueType(self.scalar_type()), out.scalar_type()), "result type ",
                self.scalar_type(), " can't be cast to the desired output type ", out.scalar_type());
    if (self.is_complex()) return out.copy_(complex_variance(op, self, dim, correction, keepdim));
    variance(op, self, dim, correction, out, Tensor());
    return out;
}

std::tuple<Tensor, Tensor> variance_mean(const Variance& op, const Tensor& self, OptionalIntArrayRef dim,
                                         const std::optional<Scalar>& correction, bool keepdim) {
    check_floating(op, self, true);
    const DimMask dims = kernels::dim_mask(self, dim);
    if (self.is_complex())
        return {complex_variance(op, self, dim, correction, keepdim), self.mean(dim, keepdim)};
    Tensor result = empty_result(self, dims, keepdim, self.scalar_type());
    Tensor mean = empty_result(self, dims, keepdim, self.scalar_type());
    variance(op, self, dim, correction, result, mean);
    return {result, mean};
}

// --- norms
// --------------------------------------------------------------------------------------------------

// What linalg.vector_norm's meta function checks, and norm's does not.
void check_norm_of_nothing(const Tensor& self, double order, OptionalIntArrayRef dim) {
    if (self.numel() > 0 || !(order < 0 || std::isinf(order))) return;
    constexpr const char* kWhy = "because the operation does not have an identity";
    TORCH_CHECK(dim.has_value() && !dim->empty(), "linalg.vector_norm cannot compute the ", order,
                " norm on an empty tensor ", kWhy);
    for (const int64_t d : *dim) {
        TORCH_CHECK(self.size(d) > 0, "linalg.vector_norm cannot compute the ", order,
                    " norm on the dimension ", d,
                    "because this dimension is empty and the operation does not have an identity");
    }
}

void vector_norm(const Tensor& self, double order, OptionalIntArrayRef dim, const Tensor& result) {
    const DimMask dims = kernels::dim_mask(self, dim);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    check_norm_of_nothing(self, order, dim);
    // Of one element its magnitude, also where its power overflows.
    bool single = order != 0;
    for (int64_t d = 0; d < self.dim(); ++d) single &= !dims[d] || self.size(d) == 1;
    const ReductionRow& row = order == 0             ? rows::norm_0
                              : order == 1 || single ? rows::norm_1
                              : order == 2           ? rows::norm_2
                              : order == kInfinity   ? rows::norm_inf
                              : order == -kInfinity  ? rows::norm_minus_inf
                                                     : rows::norm_p;
    kernels::reduce(row, self, dims, {result}, {static_cast<float>(order), static_cast<float>(1 / order)});
}

double norm_order(at::OptionalScalarRef p) {
    return p.has_value() ? p.get().toDouble() : 2.0;
}

Tensor& whole_out(const ReductionRow& row, const char* name, const Tensor& self, Tensor& out) {
    TORCH_CHECK(self.device() == out.device(),
                "Expected all tensors to be on the same device, but got out is on ", out.device(),
                ", different from other tensors on ", self.device());
    TORCH_CHECK(at::canCast(self.scalar_type(), out.scalar_type()), "Expected out tensor to have dtype ",
                self.dtype(), ", but got ", out.dtype(), " instead");
    TORCH_CHECK(self.numel() > 0, name,
                "(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument.");
    at::native::resize_output(out, {});
    kernels::reduce(row, self, kernels::dim_mask(self, std::nullopt), {out});
    return out;
}

Tensor whole(const ReductionRow& row, const char* name, const Tensor& self) {
    Tensor out = empty_like_shape(self, {}, self.scalar_type());
    return whole_out(row, name, self, out);
}

}  // namespace

TORCH_IMPL_FUNC(hash_tensor_out)
(const Tensor& self, IntArrayRef dim, bool keepdim, int64_t mode, const Tensor& out) {
    TORCH_CHECK(mode == 0, "Unknown hash_tensor mode: ", mode);
    kernels::check_real(self.scalar_type(), "xor_sum_mps");
    kernels::reduce(rows::hash_bits, self, kernels::dim_mask(self, dim), {out});
}

Tensor ANYMPS_FUNC(prod)(const Tensor& self, std::optional<ScalarType> dtype) {
    Tensor result = empty_like_shape(self, {}, promoted(self, dtype));
    kernels::reduce(rows::prod, self, kernels::dim_mask(self, std::nullopt), {result});
    return result;
}

ANYMPS_ROW(max, whole(rows::amax, "max", self))
ANYMPS_ROW(max_unary_out, whole_out(rows::amax, "max", self, out))
ANYMPS_ROW(min, whole(rows::amin, "min", self))
ANYMPS_ROW(min_unary_out, whole_out(rows::amin, "min", self, out))

std::tuple<Tensor, Tensor> ANYMPS_FUNC(_aminmax)(const Tensor& self) {
    warn_of_aminmax();
    return at::aminmax(self);
}
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_aminmax_dim)(const Tensor& self, int64_t dim, bool keepdim) {
    warn_of_aminmax();
    return at::aminmax(self, dim, keepdim);
}

Tensor& ANYMPS_FUNC(nansum_out)(const Tensor& self, OptionalIntArrayRef dim, bool keepdim,
                                std::optional<ScalarType> dtype, Tensor& out) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isComplexType(self.scalar_type()),
                                "nansum on MPS does not support complex inputs");
    TORCH_CHECK(!dtype || *dtype == out.scalar_type(),
                "Expected the dtype for input and out to match, but got ", c10::toString(out.scalar_type()),
                " for out and ", c10::toString(*dtype), " for dtype.");
    const DimMask dims = kernels::dim_mask(self, dim);
    at::native::resize_output(out, kernels::reduced_shape(self, dims, keepdim));
    const bool integral = at::isIntegralType(out.scalar_type(), /*includeBool=*/true);
    kernels::reduce(integral ? rows::sum : rows::nansum, self, dims, {out});
    return out;
}

ANYMPS_ROW(nansum, nansum_out(self, dim, keepdim, std::nullopt,
                              NewTensor(empty_result(self, kernels::dim_mask(self, dim), keepdim,
                                                     promoted(self, dtype)))))

Tensor ANYMPS_FUNC(count_nonzero_dim_IntList)(const Tensor& self, IntArrayRef dim) {
    const DimMask dims = kernels::dim_mask(self, dim);
    Tensor result = empty_result(self, dims, false, at::kLong);
    kernels::reduce(rows::count_nonzero, self, dims, {result});
    return result;
}

// In one reading; PyTorch's own makes four.
Tensor& ANYMPS_FUNC(logsumexp_out)(const Tensor& self, IntArrayRef dim, bool keepdim, Tensor& out) {
    if (!self.is_mps() || !out.is_mps() || self.is_complex() || !out.is_floating_point())
        return at::native::logsumexp_out(self, dim, keepdim, out);
    const DimMask dims = kernels::dim_mask(self, dim);
    at::native::resize_output(out, kernels::reduced_shape(self, dims, keepdim));
    kernels::reduce(rows::logsumexp, self, dims, {out});
    return out;
}

Tensor ANYMPS_FUNC(logsumexp)(const Tensor& self, IntArrayRef dim, bool keepdim) {
    if (self.is_complex()) return at::native::logsumexp(self, dim, keepdim);
    const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
    const ScalarType type =
        integral ? c10::typeMetaToScalarType(c10::get_default_dtype()) : self.scalar_type();
    Tensor out = empty_result(self, kernels::dim_mask(self, dim), keepdim, type);
    return logsumexp_out(self, dim, keepdim, out);
}

Tensor ANYMPS_FUNC(trace)(const Tensor& self) {
    TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
    const Tensor diagonal = self.diagonal();
    Tensor result = empty_like_shape(self, {}, promoted(self, std::nullopt));
    kernels::reduce(rows::sum, diagonal, kernels::dim_mask(diagonal, std::nullopt), {result});
    return result;
}

ANYMPS_ROW(var_correction, variance({"var", false}, self, dim, correction, keepdim))
ANYMPS_ROW(var_correction_out, variance_out({"var", false}, self, dim, correction, keepdim, out))
ANYMPS_ROW(std_correction, variance({"std", true}, self, dim, correction, keepdim))
ANYMPS_ROW(std_correction_out, variance_out({"std", true}, self, dim, correction, keepdim, out))
ANYMPS_ROW(var_mean_correction, variance_mean({"var_mean", false}, self, dim, correction, keepdim))
ANYMPS_ROW(std_mean_correction, variance_mean({"std_mean", true}, self, dim, correction, keepdim))
ANYMPS_ROW(norm_out, vector_norm(self, norm_order(p), dim, out))
ANYMPS_ROW(norm_dtype_out, vector_norm(self, norm_order(p), dim, out))
ANYMPS_ROW(linalg_vector_norm_out, vector_norm(self, ord.toDouble(), dim, out))

}  // namespace anymps::ops
