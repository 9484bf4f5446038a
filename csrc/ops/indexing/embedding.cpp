// The gradient of embedding: rows added up by index. (The forward is index_select.)
#include <anymps/ops/indexing/embedding_ops.h>

#include <ATen/TensorUtils.h>
#include <ATen/ops/zeros.h>

#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {

Tensor ANYMPS_FUNC(embedding_dense_backward)(const Tensor& grad_output, const Tensor& indices,
                                             int64_t num_weights, int64_t padding_idx,
                                             bool scale_grad_by_freq) {
    const at::TensorArg index_arg(indices, "indices", 2);
    at::checkScalarTypes("embedding_backward", index_arg, {at::kLong, at::kInt});
    const int64_t width = grad_output.size(-1);
    const Tensor index = indices.reshape(-1);
    // Rows are added in float: many small gradients may meet in one row.
    Tensor rows = grad_output.reshape({-1, width}).to(at::kFloat);
    Tensor weight = at::zeros({num_weights, width}, rows.options());
    if (index.numel() == 0) return weight.to(grad_output.scalar_type());
    const IndexedCopy how{.op = "embedding_dense_backward",
                          .indexed_destination = true,
                          .operation = IndexedOperation::Add,
                          .skip = padding_idx >= 0 ? padding_idx : std::numeric_limits<int64_t>::min()};
    if (scale_grad_by_freq) {
        const Tensor counts = at::zeros({num_weights}, rows.options());
        indexed_copy_dim(counts, at::zeros({}, rows.options()).add_(1).expand(index.sizes()), index, 0, how);
        rows = rows.div(counts.index_select(0, index).unsqueeze(1));
    }
    indexed_copy_dim(weight, rows, index.unsqueeze(1).expand(rows.sizes()), 0, how);
    return weight.to(grad_output.scalar_type());
}

}  // namespace anymps::ops
