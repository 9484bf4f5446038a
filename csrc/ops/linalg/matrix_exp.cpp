// exp of square matrices: Taylor's polynomial of a matrix scaled by a power of two, then squarings.
#include <anymps/ops/linalg/matrix_exp_ops.h>

#include <ATen/OpMathType.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_compute_linear_combination.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "ops/linalg/blocks.h"

namespace anymps::ops {
namespace {

// Up to this 1-norm the polynomial of degree 12 is exp within float32's precision: Bader, Blanes, Casas,
// "Computing the matrix exponential with an optimized Taylor polynomial approximation" (2019), table 2.
constexpr double kLargestNorm = 1.461661507209034;

// 1 / (4 i)! + x / (4 i + 1)! + x^2 / (4 i + 2)! + x^3 / (4 i + 3)!
Tensor four_terms(int i, const Tensor& x, const Tensor& x2, const Tensor& x3) {
    const auto coefficient = [i](int k) { return 1 / std::tgamma(4 * i + k + 1); };
    Tensor sum = x.mul(coefficient(1));
    sum.add_(x2, coefficient(2)).add_(x3, coefficient(3));
    sum.diagonal(0, -2, -1).add_(coefficient(0));
    return sum;
}

// Degree 12 by Paterson and Stockmeyer: five products.
Tensor polynomial(const Tensor& x) {
    const Tensor x2 = at::bmm(x, x), x3 = at::bmm(x2, x), x4 = at::bmm(x2, x2);
    const Tensor high = four_terms(2, x, x2, x3).add_(x4, 1 / std::tgamma(13));
    const Tensor middle = four_terms(1, x, x2, x3).add_(at::bmm(x4, high));
    return four_terms(0, x, x2, x3).add_(at::bmm(x4, middle));
}

// x: [batch, n, n] of float32 or complex64. Waits for the device once, to read the norms.
Tensor exp_of_batch(const Tensor& x) {
    const Tensor norms = x.abs().sum(-2).amax(-1).cpu();
    Tensor scales = at::empty_like(norms), squarings = at::empty_like(norms);
    float most = 0;
    for (int64_t i = 0; i < norms.numel(); ++i) {
        const double norm = norms.const_data_ptr<float>()[i];
        const bool scaled = std::isfinite(norm) && norm > kLargestNorm;  // others become nan, as on the CPU
        const double count = scaled ? std::ceil(std::log2(norm / kLargestNorm)) : 0;
        scales.mutable_data_ptr<float>()[i] = static_cast<float>(std::exp2(-count));
        squarings.mutable_data_ptr<float>()[i] = static_cast<float>(count);
        most = std::max(most, static_cast<float>(count));
    }
    const auto on_device = [&](const Tensor& t) { return t.to(x.device()).view({-1, 1, 1}); };
    Tensor result = polynomial(most > 0 ? x.mul(on_device(scales)) : x);
    if (most == 0) return result;
    const Tensor left = on_device(squarings);
    for (float i = 0; i < most; ++i) {
        const Tensor square = at::bmm(result, result);
        result = x.size(0) == 1 ? square : at::where(left.gt(i), square, result);
    }
    return result;
}

}  // namespace

Tensor ANYMPS_FUNC(linalg_matrix_exp)(const Tensor& self) {
    at::native::squareCheckInputs(self, "linalg.matrix_exp");
    at::native::checkFloatingOrComplex(self, "linalg.matrix_exp");
    if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Contiguous);
    if (self.size(-1) == 1) return self.exp();
    const auto dtype = self.scalar_type();
    const Tensor x = as_batch(self.to(at::toOpMathType(dtype)));
    return exp_of_batch(x).view(self.sizes()).to(dtype);
}

// out [m, ...] += coefficients [m, n] times input [n, ...], dtypes of floats and complex numbers.
Tensor& ANYMPS_FUNC(_compute_linear_combination_out)(const Tensor& input, const Tensor& coefficients,
                                                     Tensor& out) {
    TORCH_CHECK(input.dim() > 0 && input.numel() > 0, "Empty tensor not supported");
    const Tensor sums = at::addmm(out.reshape({out.size(0), -1}), coefficients.to(input.scalar_type()),
                                  input.reshape({input.size(0), -1}));
    return out.copy_(sums.view(out.sizes()));
}

Tensor ANYMPS_FUNC(_compute_linear_combination)(const Tensor& input, const Tensor& coefficients) {
    TORCH_CHECK(input.dim() > 0 && input.numel() > 0, "Empty tensor not supported");
    auto sizes = input.sizes().vec();
    sizes[0] = coefficients.size(0);
    Tensor out = at::zeros(sizes, input.options());
    return at::_compute_linear_combination_out(out, input, coefficients);
}

}  // namespace anymps::ops
