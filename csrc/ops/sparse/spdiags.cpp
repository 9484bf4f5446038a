#include <anymps/ops/sparse/spdiags_ops.h>

#include <ATen/ops/_unique.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>

namespace anymps::ops {

// A matrix of these diagonals: element [i, c] of diagonals [n, length] stands in column c of the diagonal
// offsets[i], below the main one where that is negative. What has no place in the matrix is left out.
Tensor ANYMPS_FUNC(_spdiags)(const Tensor& diagonals, const Tensor& offsets, at::IntArrayRef shape,
                             std::optional<at::Layout> layout) {
    const Tensor given = diagonals.dim() == 1 ? diagonals.unsqueeze(0) : diagonals;
    TORCH_CHECK(given.dim() == 2, "Diagonals must be vector or matrix");
    TORCH_CHECK(shape.size() == 2, "Output shape must be 2d");
    const Tensor offset = offsets.dim() == 0 ? offsets.unsqueeze(0) : offsets;
    TORCH_CHECK(offset.dim() == 1, "Offsets must be scalar or vector");
    TORCH_CHECK(given.size(0) == offset.size(0), "Number of diagonals (", given.size(0),
                ") does not match the number of offsets (", offset.size(0), ")");
    TORCH_CHECK(!layout || *layout == at::kSparse || *layout == at::kSparseCsc || *layout == at::kSparseCsr,
                "Only output layouts (Sparse, SparseCsc, SparseCsr) are supported, got ", *layout);
    TORCH_CHECK(offset.scalar_type() == at::kLong, "Offset Tensor must have dtype Long but got ",
                offset.scalar_type());
    TORCH_CHECK(offset.numel() == std::get<0>(at::_unique(offset)).numel(),
                "Offset tensor contains duplicate values");
    const int64_t length = given.size(1);
    const Tensor first = offset.clamp_min(0);  // column
    const Tensor counts =
        offset.add(shape[0]).clamp_max_(std::min(shape[1], length)).sub_(first).clamp_min_(0);
    const Tensor which = at::repeat_interleave(counts);
    // The column is the place in `which` less that of the diagonal's first, and that one's column.
    const Tensor shift = first.sub(counts.cumsum(0).sub_(counts));
    const Tensor column = at::arange(which.numel(), which.options()).add_(shift.index_select(0, which));
    const Tensor row = column.sub(offset.index_select(0, which));
    const Tensor values = given.reshape({-1}).index_select(0, at::add(column, which, length));
    const Tensor matrix = at::sparse_coo_tensor(at::stack({row, column}), values, shape);
    if (layout == at::kSparseCsr) return matrix.to_sparse_csr();
    return layout == at::kSparseCsc ? matrix.to_sparse_csc() : matrix;
}

}  // namespace anymps::ops
