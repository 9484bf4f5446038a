#include <anymps/ops/sparse/sum_ops.h>

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"

namespace anymps::ops {

// Every element of self gets the gradient of the sum that it went into.
Tensor ANYMPS_SPARSE_FUNC(_sparse_sum_backward)(const Tensor& grad, const Tensor& self, at::IntArrayRef dim) {
    if ((grad.is_sparse() && grad._nnz() == 0) || grad.numel() == 0) return at::zeros_like(self);
    const Tensor input = self.coalesce(), indices = input._indices(), values = input._values();
    const auto summed = at::dim_list_to_bitset(dim, input.dim());
    const int64_t sparse_dim = input.sparse_dim();
    std::vector<Tensor> kept;
    std::vector<int64_t> kept_sizes;
    for (int64_t d = 0; d < sparse_dim; ++d) {
        if (summed[d]) continue;
        kept.push_back(indices.select(0, d));
        kept_sizes.push_back(input.size(d));
    }
    TORCH_CHECK(grad.is_sparse() != kept.empty(), "_sparse_sum_backward: expected grad_ Tensor to be ",
                kept.empty() ? "dense since all sparse dims are summed" : "sparse, but got dense");
    Tensor found = grad;
    if (grad.is_sparse()) {
        const Tensor sums = grad.coalesce();
        found = values_of_keys(sums._values(), flat_keys(sums._indices(), sums.sizes()),
                               flat_keys(at::stack(kept), kept_sizes));
    } else {
        found = grad.unsqueeze(0);
    }
    for (int64_t d = sparse_dim; d < input.dim(); ++d) {
        if (summed[d]) found = found.unsqueeze(d - sparse_dim + 1);
    }
    return sparse_tensor(indices.clone(), found.expand(values.sizes()).clone(at::MemoryFormat::Contiguous),
                         input.sizes(), true);
}

}  // namespace anymps::ops
