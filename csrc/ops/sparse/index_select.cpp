#include <anymps/ops/sparse/index_select_ops.h>

#include <ATen/WrapDimUtils.h>

#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"

namespace anymps::ops {

Tensor ANYMPS_SPARSE_FUNC(index_select)(const Tensor& self, int64_t dim, const Tensor& index) {
    TORCH_CHECK_INDEX(self.dim(), "index_select() cannot be applied to a 0-dim tensor.");
    TORCH_CHECK_INDEX(
        index.dim() == 1 && index.dtype() == at::kLong && index.options().layout() == at::kStrided,
        "index_select() argument index must be 1-D strided (non-sparse) long-tensor.");
    dim = at::maybe_wrap_dim(dim, self.dim());
    const int64_t sparse_dim = self.sparse_dim(), size = self.size(dim);
    auto sizes = self.sizes().vec();
    sizes[dim] = index.numel();
    const Tensor indices = self._indices(), values = self._values();
    // As for a dense tensor's, an index that is out of range shows at the next synchronization.
    if (dim >= sparse_dim)
        return sparse_tensor(indices, values.index_select(dim - sparse_dim + 1, index), sizes,
                             self.is_coalesced());
    // The elements of an index lie together in the order of this dimension.
    const Tensor places = indices.select(0, dim).contiguous();
    const Tensor order = order_of_keys(places, size);
    const Tensor pointers = row_pointers(places.index_select(0, order), size);
    const auto [which, position] =
        positions_of_rows(pointers, index.add(index.lt(0).to(at::kLong), size).contiguous());
    const Tensor taken = order.index_select(0, position);
    Tensor new_indices = indices.index_select(1, taken);
    new_indices.select(0, dim).copy_(which);
    return sparse_tensor(new_indices, values.index_select(0, taken), sizes, false);
}

}  // namespace anymps::ops
