// Compressed indices from coordinates, and back.
#include <anymps/ops/sparse/compressed_indices_ops.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

#include "ops/registration.h"
#include "ops/sparse/coordinates.h"

namespace anymps::ops {

TORCH_IMPL_FUNC(_convert_indices_from_coo_to_csr_out)
(const Tensor& self, int64_t size, bool out_int32, const Tensor& result) {
    const Tensor sorted = self.reshape({-1});
    result.copy_(sorted.numel() == 0 ? at::zeros_like(result)
                                     : row_pointers(sorted, size, out_int32 ? at::kInt : at::kLong));
}

// [batch dimensions..., row, column] of every element; row and column change places where transpose is set.
TORCH_IMPL_FUNC(_convert_indices_from_csr_to_coo_out)
(const Tensor& crow_indices, const Tensor& col_indices, bool out_int32, bool transpose,
 const Tensor& result) {
    if (result.numel() == 0) return;
    const int64_t batch_dim = crow_indices.dim() - 1, nnz = col_indices.size(-1);
    const int64_t batches = nnz == 0 ? 0 : col_indices.numel() / nnz;
    const auto type = out_int32 ? at::kInt : at::kLong;
    const Tensor rows = rows_of_elements(crow_indices, nnz).reshape({-1});
    result.select(0, batch_dim + (transpose ? 1 : 0)).copy_(rows);
    result.select(0, batch_dim + (transpose ? 0 : 1)).copy_(col_indices.reshape({-1}));
    // Batch coordinates in row-major order, each for all elements of its batch.
    int64_t inner = batches;
    for (int64_t d = 0; d < batch_dim; ++d) {
        const int64_t size = col_indices.size(d);
        inner /= size;
        const Tensor places = at::arange(size, result.options().dtype(type)).view({1, size, 1});
        result.select(0, d).copy_(places.expand({batches / inner / size, size, inner * nnz}).reshape({-1}));
    }
}

}  // namespace anymps::ops
