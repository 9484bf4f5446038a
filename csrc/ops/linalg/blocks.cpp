#include "ops/linalg/blocks.h"

#include <ATen/native/LinearAlgebraUtils.h>
#include <anymps/shaders/linalg/solve.h>

#include <algorithm>

#include "gemm/gemm.h"
#include "kernels/check_dtype.h"
#include "kernels/launch_config.h"

namespace anymps::ops {
namespace {

using at::Tensor;

void solve_block(const Tensor& a, const Tensor& b, bool upper, bool unit) {
    const auto groups = static_cast<uint32_t>(kernels::ceil_div(b.size(2), kBlock));
    const auto batch = static_cast<uint32_t>(b.size(0));
    const shaders::solve::SolveArgs args{.a = kernels::address(a),
                                         .a_strides = strides_of(a),
                                         .b = kernels::address(b),
                                         .b_strides = strides_of(b),
                                         .size = static_cast<uint32_t>(b.size(1)),
                                         .columns = static_cast<uint32_t>(b.size(2)),
                                         .groups = groups,
                                         .batch = batch};
    (b.is_complex() ? shaders::solve::triangular_block_c64 : shaders::solve::triangular_block_f32)
        .call({.unit = unit, .flipped = upper})
        .read(a)
        .read(b)
        .write(b)
        .dispatch(args, kernels::Grid::linear(uint64_t{groups} * batch));
}

}  // namespace

void check_field(const char* op, const Tensor& matrices) {
    const auto type = matrices.scalar_type();
    kernels::check_implemented(type == at::kFloat || type == at::kComplexFloat, type, op);
}

Tensor as_batch(const Tensor& matrices) {
    const int64_t rows = matrices.size(-2), columns = matrices.size(-1);
    // solve_triangular gets conjugates and negatives unresolved, and kernels read memory.
    return matrices.resolve_conj().resolve_neg().reshape({at::native::batchCount(matrices), rows, columns});
}

Tensor block(const Tensor& matrices, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const int64_t offset = matrices.storage_offset() + row * matrices.stride(1) + column * matrices.stride(2);
    return matrices.as_strided({matrices.size(0), rows, columns}, matrices.strides(), offset);
}

void subtract_product(const Tensor& out, const Tensor& a, const Tensor& b) {
    gemm::Gemm{"linalg",
               out.size(0),
               out.size(1),
               out.size(2),
               a.size(2),
               gemm::matrices(a),
               gemm::matrices(b),
               gemm::matrices(out),
               gemm::matrices(out),
               1,
               -1}
        .run();
}

void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit) {
    const int64_t n = b.size(1), columns = b.size(2);
    if (b.numel() == 0) return;
    for (int64_t done = 0; done < n; done += kBlock) {
        const int64_t size = std::min(kBlock, n - done), left = n - done - size;
        const int64_t first = upper ? left : done, rest = upper ? 0 : done + size;
        const Tensor solved = block(b, first, size, 0, columns);
        solve_block(block(a, first, size, first, size), solved, upper, unit);
        if (left > 0)
            subtract_product(block(b, rest, left, 0, columns), block(a, rest, left, first, size), solved);
    }
}

}  // namespace anymps::ops
