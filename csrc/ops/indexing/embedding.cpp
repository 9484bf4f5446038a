// embedding: rows by index, and its gradient, rows added up by index.
#include <anymps/ops/indexing/embedding_ops.h>

#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {

// weight [rows, width], indices [...] -> [..., width].
Tensor ANYMPS_FUNC(embedding)(const Tensor& weight, const Tensor& indices, int64_t padding_idx,
                              bool scale_grad_by_freq, bool sparse) {
    TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
    at::checkScalarTypes("embedding", at::TensorArg(indices, "indices", 1), {at::kLong, at::kInt});
    auto sizes = indices.sizes().vec();
    sizes.push_back(weight.size(1));
    const Tensor out = at::empty(sizes, weight.options());
    if (out.numel() == 0) return out;
    const Tensor rows = out.view({-1, weight.size(1)});
    const Tensor index = indices.reshape({-1, 1}).expand(rows.sizes());
    indexed_copy_dim(rows, weight, index, 0, {.op = "embedding"});
    return out;
}

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
