// Cholesky factors, and systems solved by them.
#include <anymps/ops/linalg/cholesky_ops.h>
#include <anymps/shaders/linalg/cholesky.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "ops/linalg/blocks.h"
#include "runtime/torch_version.h"

namespace anymps::ops {
namespace {

void factor_block(const Tensor& a, const Tensor& info, int64_t first) {
    const shaders::cholesky::CholeskyArgs args{.a = kernels::address(a),
                                               .strides = strides_of(a),
                                               .info = kernels::address(info),
                                               .first = static_cast<uint32_t>(first),
                                               .size = static_cast<uint32_t>(a.size(1)),
                                               .batch = static_cast<uint32_t>(a.size(0))};
    (a.is_complex() ? shaders::cholesky::cholesky_block_c64 : shaders::cholesky::cholesky_block_f32)
        .call()
        .read(a)
        .write(a)
        .write(info)
        .dispatch(args, kernels::Grid::linear(args.batch));
}

Tensor adjoint(const Tensor& matrices) {
    return matrices.is_complex() ? matrices.mT().conj_physical() : matrices.mT();
}

// b becomes the solution of A X = b, of the factor of A.
void solve(const Tensor& factor, const Tensor& b, bool upper) {
    const Tensor lower = upper ? adjoint(factor) : factor;
    solve_triangular(lower, b, false, false);
    solve_triangular(upper ? factor : adjoint(factor), b, true, false);
}

// 1-based position of the first zero on the diagonal, or 0, as LAPACK's potri says it.
Tensor first_zero(const Tensor& matrices) {
    const Tensor zero = matrices.diagonal(0, -2, -1).eq(0);
    return at::where(zero.any(-1), zero.to(at::kInt).argmax(-1).add(1), 0).to(at::kInt).contiguous();
}

void factor(const Tensor& self, bool upper, const Tensor& result, const Tensor& info) {
    check_field("cholesky_cpu", self);
    info.zero_();
    if (self.numel() == 0) return;
    const Tensor work = at::native::cloneBatchedColumnMajor(self);
    const Tensor batch = as_batch(work), infos = info.is_contiguous() ? info : at::zeros_like(info);
    factor_cholesky(upper ? batch.mT() : batch, infos.view({-1}));
    if (!infos.is_same(info)) info.copy_(infos);
    Tensor target = result;
    upper ? at::triu_out(target, work) : at::tril_out(target, work);
}

}  // namespace

// Each block column: its diagonal block, the rows below it solved with that, and the product taken from what
// is right of it.
void factor_cholesky(const Tensor& a, const Tensor& info) {
    const int64_t n = a.size(1);
    for (int64_t k = 0; k < n; k += kBlock) {
        const int64_t size = std::min(kBlock, n - k), left = n - k - size;
        const Tensor diagonal = block(a, k, size, k, size);
        factor_block(diagonal, info, k);
        if (left == 0) return;
        const Tensor below = block(a, k + size, left, k, size);
        const Tensor conjugate = a.is_complex() ? diagonal.conj_physical() : diagonal;
        solve_triangular(conjugate, below.mT(), false, false);
        subtract_product(block(a, k + size, left, k + size, left), below,
                         a.is_complex() ? below.conj_physical().mT() : below.mT());
    }
}

TORCH_IMPL_FUNC(linalg_cholesky_ex_L)
(const Tensor& self, bool upper, bool check_errors, const Tensor& L, const Tensor& info) {
    factor(self, upper, L, info);
    if (check_errors) at::_linalg_check_errors(info, "linalg.cholesky_ex", self.dim() == 2);
}

#if ANYMPS_TORCH_UNTIL(2, 13)  // composite of linalg_cholesky since
Tensor ANYMPS_FUNC(cholesky)(const Tensor& self, bool upper) {
    if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Contiguous);
    at::native::squareCheckInputs(self, "cholesky");
    const Tensor result = at::native::cloneBatchedColumnMajor(self);
    const Tensor info = at::empty(self.sizes().slice(0, self.dim() - 2), self.options().dtype(at::kInt));
    factor(self, upper, result, info);
    at::_linalg_check_errors(info, "cholesky", self.dim() == 2);
    return result;
}

Tensor& ANYMPS_FUNC(cholesky_out)(const Tensor& self, bool upper, Tensor& out) {
    at::native::checkSameDevice("cholesky", out, self);
    at::native::checkLinalgCompatibleDtype("cholesky", out, self);
    const Tensor result = cholesky(self, upper);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
}
#endif

// self: right-hand sides, A: the factor; equal batches (cholesky_solve has broadcast them).
Tensor ANYMPS_FUNC(_cholesky_solve_helper)(const Tensor& self, const Tensor& A, bool upper) {
    check_field("cholesky_solve_cpu", self);
    const Tensor result = at::native::cloneBatchedColumnMajor(self);
    if (result.numel() > 0) solve(as_batch(A), as_batch(result), upper);
    return result;
}

Tensor ANYMPS_FUNC(cholesky_inverse)(const Tensor& self, bool upper) {
    at::native::squareCheckInputs(self, "cholesky_inverse");
    check_field("cholesky_inverse_out_cpu", self);
    const Tensor result = at::empty_like(self.mT(), at::MemoryFormat::Contiguous).mT();
    if (self.numel() == 0) return result;
    at::_linalg_check_errors(first_zero(self), "cholesky_inverse", self.dim() == 2);
    result.zero_();
    result.diagonal(0, -2, -1).fill_(1);
    solve(as_batch(self), as_batch(result), upper);
    return result;
}

Tensor& ANYMPS_FUNC(cholesky_inverse_out)(const Tensor& self, bool upper, Tensor& out) {
    at::native::checkSameDevice("cholesky_inverse", out, self);
    at::native::checkLinalgCompatibleDtype("cholesky_inverse", out, self);
    const Tensor result = cholesky_inverse(self, upper);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
}

}  // namespace anymps::ops
