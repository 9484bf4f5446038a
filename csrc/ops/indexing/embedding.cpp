// embedding: rows by index, and its gradient, rows added up by index.
#include <anymps/ops/indexing/embedding_ops.h>

#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "ops/indexing/indexed_copy.h"
#include "ops/indexing/segment_sum.h"

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
    TORCH_CHECK(weight.size(0) > 0, "index_select(): self indexing axis dim should be positive");
    const Tensor rows = out.view({-1, weight.size(1)});
    const Tensor index = indices.reshape({-1, 1}).expand(rows.sizes());
    indexed_copy_dim(rows, weight, index, 0, {.op = "embedding"});
    return out;
}

// No table of routes: sums by sorted indices, in a fixed order, are the one way on every device.
Tensor ANYMPS_FUNC(embedding_dense_backward)(const Tensor& grad_output, const Tensor& indices,
                                             int64_t num_weights, int64_t padding_idx,
                                             bool scale_grad_by_freq) {
    const at::TensorArg index_arg(indices, "indices", 2);
    at::checkScalarTypes("embedding_backward", index_arg, {at::kLong, at::kInt});
    const int64_t width = grad_output.size(-1);
    const Tensor index = indices.reshape(-1);
    Tensor rows = grad_output.reshape({index.numel(), width});
    const Tensor weight = at::zeros({num_weights, width}, rows.options());
    if (rows.numel() == 0) return weight;
    constexpr const char* kName = "embedding_dense_backward";
    const int64_t skip = padding_idx >= 0 ? padding_idx : std::numeric_limits<int64_t>::min();
    if (scale_grad_by_freq) {
        const Tensor counts = at::zeros({num_weights, 1}, rows.options().dtype(at::kFloat));
        const Tensor one = at::ones({1, 1}, counts.options()).expand({index.numel(), 1});
        segment_sum(kName, counts, one, index, skip);
        rows = rows.to(at::kFloat).div(counts.index_select(0, index));
    }
    segment_sum(kName, weight, rows, index, skip);
    return weight;
}

}  // namespace anymps::ops
