// LU factors with partial pivoting, what they unpack to, and systems solved by them.
#include <anymps/ops/linalg/lu_ops.h>
#include <anymps/shaders/linalg/lu.h>

#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/lu_unpack.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>

#include <algorithm>
#include <limits>

#include "kernels/launch_config.h"
#include "ops/linalg/blocks.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::lu;

uint32_t u32(int64_t size) {
    return static_cast<uint32_t>(size);
}

void factor_panel(const Tensor& a, int64_t first, int64_t width, const Tensor& pivots, const Tensor& info,
                  bool pivoting) {
    const shader::PanelArgs args{.a = kernels::address(a),
                                 .strides = strides_of(a),
                                 .pivots = kernels::address(pivots),
                                 .info = kernels::address(info),
                                 .pivots_a_matrix = u32(pivots.size(-1)),
                                 .rows = u32(a.size(1)),
                                 .first = u32(first),
                                 .width = u32(width),
                                 .batch = u32(a.size(0)),
                                 .pivoting = pivoting};
    const auto& launch_config = kernels::launch_config();
    // Short panels do not need more than a subgroup, which has no barriers to wait at.
    const uint32_t workgroup = a.size(1) - first <= 64 ? launch_config.subgroup : launch_config.workgroup;
    (a.is_complex() ? shader::lu_panel_c64 : shader::lu_panel_f32)
        .call({.workgroup = workgroup, .subgroup = launch_config.subgroup})
        .read(a)
        .write(a)
        .write(pivots)
        .write(info)
        .dispatch(args, kernels::Grid::linear(args.batch));
}

// Exchanges the rows of all columns but [skipped, skipped + skip_count) by pivots [first, first + count).
void swap_columns(const Tensor& a, const Tensor& pivots, int64_t first, int64_t count, int64_t skipped,
                  int64_t skip_count, bool backwards) {
    const auto error = runtime::encoder().error_slot("lu_solve");
    const shader::SwapArgs args{.a = kernels::address(a),
                                .strides = strides_of(a),
                                .pivots = kernels::address(pivots),
                                .error = error.address,
                                .code = error.code,
                                .pivots_a_matrix = u32(pivots.size(-1)),
                                .first = u32(first),
                                .count = u32(count),
                                .rows = u32(a.size(1)),
                                .columns = u32(a.size(2) - skip_count),
                                .skipped = u32(skipped),
                                .skip_count = u32(skip_count),
                                .batch = u32(a.size(0)),
                                .backwards = backwards};
    if (args.columns == 0) return;
    const auto& launch_config = kernels::launch_config();
    const uint64_t threads = uint64_t{args.batch} * args.columns;
    const bool wide = threads > std::numeric_limits<int32_t>::max();  // those past the end count, too
    (a.is_complex() ? shader::lu_swap_c64 : shader::lu_swap_f32)
        .call({.workgroup = launch_config.workgroup, .subgroup = launch_config.subgroup, .wide = wide})
        .read(pivots)
        .read(a)
        .write(a)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(threads, launch_config.workgroup)));
}

// int64 [batch, rows]: where the rows of L U come from in P L U.
Tensor permutation_of(const Tensor& pivots, int64_t rows) {
    const Tensor permutation = at::empty({pivots.size(0), rows}, pivots.options().dtype(at::kLong));
    const auto error = runtime::encoder().error_slot("lu_unpack");
    const shader::PermutationArgs args{.permutation = kernels::address(permutation),
                                       .pivots = kernels::address(pivots),
                                       .error = error.address,
                                       .code = error.code,
                                       .rows = u32(rows),
                                       .count = u32(pivots.size(1)),
                                       .batch = u32(pivots.size(0))};
    const auto& launch_config = kernels::launch_config();
    shader::lu_permutation.call({.workgroup = launch_config.workgroup, .subgroup = launch_config.subgroup})
        .read(pivots)
        .write(permutation)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.batch, launch_config.workgroup)));
    return permutation;
}

void unpack_factors(const Tensor& LU, Tensor L, Tensor U) {
    const int64_t m = LU.size(-2), n = LU.size(-1);
    // L or U may be LU itself, which must be read before it is written.
    if (m > n || LU.is_same(L)) {
        at::triu_out(U, m == n ? LU : LU.narrow(-2, 0, n), 0);
        at::tril_out(L, LU, -1);
    } else {
        at::tril_out(L, m == n ? LU : LU.narrow(-1, 0, m), -1);
        at::triu_out(U, LU, 0);
    }
    L.diagonal(0, -2, -1).fill_(1);
}

}  // namespace

void factor_lu(const Tensor& a, const Tensor& pivots, const Tensor& info, bool pivoting) {
    const int64_t m = a.size(1), n = a.size(2), most = std::min(m, n);
    for (int64_t k = 0; k < most; k += kBlock) {
        const int64_t width = std::min(kBlock, most - k), next = k + width;
        factor_panel(a, k, width, pivots, info, pivoting);
        if (pivoting) swap_columns(a, pivots, k, width, k, width, false);
        if (next == n) continue;
        const Tensor right = block(a, k, width, next, n - next);
        solve_triangular(block(a, k, width, k, width), right, false, true);
        if (next == m) continue;
        subtract_product(block(a, next, m - next, next, n - next), block(a, next, m - next, k, width), right);
    }
}

void swap_rows(const Tensor& b, const Tensor& pivots, bool backwards) {
    swap_columns(b, pivots, 0, pivots.size(-1), b.size(2), 0, backwards);
}

TORCH_IMPL_FUNC(linalg_lu_factor_ex_out)
(const Tensor& A, bool pivot, bool check_errors, const Tensor& LU, const Tensor& pivots, const Tensor& info) {
    check_field("lu_cpu", A);
    info.zero_();
    if (A.numel() > 0) {
        const bool in_place = LU.mT().is_contiguous() && !LU.is_alias_of(A);
        const Tensor work = in_place ? LU : at::native::cloneBatchedColumnMajor(A);
        if (in_place) LU.copy_(A);
        const Tensor indices = pivots.is_contiguous() ? pivots : at::empty(pivots.sizes(), pivots.options());
        const Tensor infos = info.is_contiguous() ? info : info.contiguous();
        factor_lu(as_batch(work), indices.view({-1, indices.size(-1)}), infos.view({-1}), pivot);
        if (!in_place) LU.copy_(work);
        if (!indices.is_same(pivots)) pivots.copy_(indices);
        if (!infos.is_same(info)) info.copy_(infos);
    }
    if (check_errors) at::_linalg_check_errors(info, "torch.linalg.lu_factor_ex", A.dim() == 2);
}

TORCH_IMPL_FUNC(lu_unpack_out)
(const Tensor& LU, const Tensor& pivots, bool unpack_data, bool unpack_pivots, const Tensor& P,
 const Tensor& L, const Tensor& U) {
    if (unpack_data) unpack_factors(LU, L, U);
    if (!unpack_pivots) return;
    P.zero_();
    if (P.numel() == 0) return;
    const int64_t rows = LU.size(-2);
    const int64_t batch = at::native::batchCount(LU);
    const Tensor permutation = permutation_of(pivots.reshape({batch, pivots.size(-1)}).contiguous(), rows);
    P.scatter_(-2, permutation.view(P.sizes().slice(0, P.dim() - 1)).unsqueeze(-2), 1);
}

TORCH_IMPL_FUNC(linalg_lu_out)
(const Tensor& A, bool pivot, const Tensor& P, const Tensor& L, const Tensor& U) {
    // The larger factor has the place for both.
    Tensor factors = A.size(-2) > A.size(-1) ? L : U;
    Tensor pivots = at::empty({0}, A.options().dtype(at::kInt)), info = at::empty_like(pivots);
    at::linalg_lu_factor_ex_out(factors, pivots, info, A, pivot, false);
    Tensor p = P, l = L, u = U;
    at::lu_unpack_out(p, l, u, factors, pivots, true, pivot);
}

// A X = B, or A^H X = B (adjoint), or X A = B (not left), where P L U = A.
TORCH_IMPL_FUNC(linalg_lu_solve_out)
(const Tensor& LU, const Tensor& pivots, const Tensor& B, bool left, bool adjoint, const Tensor& result) {
    if (LU.numel() == 0 || B.numel() == 0) return;
    check_field("linalg.lu_solve_cpu", LU);
    auto sizes = result.sizes().vec();
    const auto batch = IntArrayRef(sizes).slice(0, sizes.size() - 2);
    const auto expanded = [&](const Tensor& t, int64_t kept) {
        auto wanted = batch.vec();
        for (int64_t d = t.dim() - kept; d < t.dim(); ++d) wanted.push_back(t.size(d));
        return t.expand(wanted);
    };
    const Tensor factors = as_batch(expanded(LU, 2));
    const Tensor exchanges = expanded(pivots, 1).reshape({-1, pivots.size(-1)}).contiguous();
    // X A = B is A^T X^T = B^T.
    const Tensor work = at::native::cloneBatchedColumnMajor(left ? B.expand(sizes) : B.expand(sizes).mT());
    const Tensor x = as_batch(work);
    const bool transposed = left ? adjoint : !adjoint, conjugated = adjoint && LU.is_complex();
    const Tensor f = conjugated ? factors.conj_physical() : factors;
    if (transposed) {
        solve_triangular(f.mT(), x, false, false);
        solve_triangular(f.mT(), x, true, true);
        swap_rows(x, exchanges, true);
    } else {
        swap_rows(x, exchanges, false);
        solve_triangular(f, x, false, true);
        solve_triangular(f, x, true, false);
    }
    result.copy_(left ? work : work.mT());
}

}  // namespace anymps::ops
