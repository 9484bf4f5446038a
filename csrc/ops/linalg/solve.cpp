// Systems of equations, inverses and determinants, by LU; triangular systems.
#include <anymps/ops/linalg/solve_ops.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/_linalg_solve_ex.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/linalg_lu_solve.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sgn.h>
#include <ATen/ops/sum.h>

#include "ops/linalg/blocks.h"

namespace anymps::ops {
namespace {

// The factors of a determinant: real matrices that are row-major are factored transposed, since their memory
// is in the order that factors have. PyTorch's backward formulas know it.
void factor_either(const Tensor& A, const Tensor& LU, const Tensor& pivots) {
    Tensor factors = LU, indices = pivots, info = at::empty({0}, A.options().dtype(at::kInt));
    const bool transposed = A.is_contiguous() && !A.is_complex();
    at::linalg_lu_factor_ex_out(factors, indices, info, transposed ? A.mT() : A);
}

// 1 or -1 a matrix, in the dtype of the factors.
Tensor permutation_sign(const Tensor& pivots, ScalarType dtype) {
    const Tensor rows = at::arange(1, pivots.size(-1) + 1, pivots.options());
    const Tensor odd = pivots.ne(rows).sum(-1).remainder(2);
    return odd.mul(-2).add(1).to(dtype);
}

// b becomes X; any batch dimensions, equal in both.
void solve_in_place(const Tensor& A, const Tensor& b, bool upper, bool left, bool unit) {
    const Tensor a = as_batch(A), x = as_batch(b);
    if (left)
        solve_triangular(a, x, upper, unit);
    else
        solve_triangular(a.mT(), x.mT(), !upper, unit);
}

}  // namespace

TORCH_IMPL_FUNC(_linalg_solve_ex_result)
(const Tensor& A, const Tensor& B, bool left, bool check_errors, const Tensor& result, const Tensor& LU,
 const Tensor& pivots, const Tensor& info) {
    Tensor factors = LU, indices = pivots, infos = info;
    at::linalg_lu_factor_ex_out(factors, indices, infos, A);
    if (check_errors) at::_linalg_check_errors(info, "torch.linalg.solve_ex", A.dim() == 2);
    const bool vector = at::native::linalg_solve_is_vector_rhs(LU, B);
    Tensor x = vector ? result.unsqueeze(-1) : result;
    at::linalg_lu_solve_out(x, LU, pivots, vector ? B.unsqueeze(-1) : B, left);
}

TORCH_IMPL_FUNC(linalg_inv_ex_inverse)
(const Tensor& A, bool check_errors, const Tensor& inverse, const Tensor& info) {
    check_field("inverse", A);
    Tensor x = inverse, infos = info;
    Tensor LU = at::empty({0}, A.options()), pivots = at::empty({0}, A.options().dtype(at::kInt));
    const Tensor identity = at::empty(A.sizes(), A.options()).zero_();
    identity.diagonal(0, -2, -1).fill_(1);
    at::_linalg_solve_ex_out(x, LU, pivots, infos, A, identity);
    if (check_errors) at::_linalg_check_errors(info, "linalg.inv_ex", A.dim() == 2);
}

TORCH_IMPL_FUNC(_linalg_det_result)
(const Tensor& A, const Tensor& result, const Tensor& LU, const Tensor& pivots) {
    factor_either(A, LU, pivots);
    Tensor out = result;
    at::mul_out(out, permutation_sign(pivots, A.scalar_type()), LU.diagonal(0, -2, -1).prod(-1));
}

TORCH_IMPL_FUNC(_linalg_slogdet_sign)
(const Tensor& A, const Tensor& sign, const Tensor& logabsdet, const Tensor& LU, const Tensor& pivots) {
    factor_either(A, LU, pivots);
    const Tensor diagonal = LU.diagonal(0, -2, -1);
    Tensor signs = sign, logarithms = logabsdet;
    at::mul_out(signs, diagonal.sgn().prod(-1), permutation_sign(pivots, A.scalar_type()));
    at::sum_out(logarithms, diagonal.abs().log_(), at::IntArrayRef{-1});
}

// self: A, [..., n, n]; A X = B, or X A = B where not left. Batches broadcast.
Tensor ANYMPS_FUNC(linalg_solve_triangular)(const Tensor& self, const Tensor& B, bool upper, bool left,
                                            bool unitriangular) {
    at::native::checkInputsSolver(self, B, left, "linalg.solve_triangular");
    check_field("triangular_solve_cpu", self);
    const auto [b, a] = at::native::_linalg_broadcast_batch_dims(B, self, nullptr);
    // Of the dtype of A, as on the CPU, where B is copied into the result.
    const Tensor x = at::native::cloneBatchedColumnMajor(b.to(self.scalar_type()));
    solve_in_place(a, x, upper, left, unitriangular);
    return x;
}

Tensor& ANYMPS_FUNC(linalg_solve_triangular_out)(const Tensor& self, const Tensor& B, bool upper, bool left,
                                                 bool unitriangular, Tensor& out) {
    const Tensor x = linalg_solve_triangular(self, B, upper, left, unitriangular);
    at::native::resize_output(out, x.sizes());
    return out.copy_(x);
}

TORCH_IMPL_FUNC(triangular_solve_X)
(const Tensor& self, const Tensor& A, bool upper, bool transpose, bool unitriangular, const Tensor& result,
 const Tensor& clone_A) {
    check_field("triangular_solve_cpu", A);
    const auto [b, a] = at::native::_linalg_broadcast_batch_dims(self, A, "triangular_solve");
    const Tensor x = at::native::cloneBatchedColumnMajor(b);
    solve_in_place(transpose ? a.mT() : a, x, upper != transpose, true, unitriangular);
    result.copy_(x);
    clone_A.copy_(a);
}

}  // namespace anymps::ops
