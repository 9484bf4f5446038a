// embedding_bag with its gradients, and the renormalisation of embeddings.
#include <anymps/ops/indexing/embedding_bag_ops.h>
#include <anymps/ops/reduction_rows.h>
#include <anymps/shaders/indexing/embedding_bag.h>

#include <ATen/TensorUtils.h>
#include <ATen/native/NonSymbolicBC.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/renorm.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/reduction_launcher.h"
#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {
namespace {

enum Mode : int64_t { kSum, kMean, kMax };

using Bags = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor defined(const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? *tensor : Tensor();
}

void check_indices(const Tensor& indices, const Tensor& offsets) {
    TORCH_CHECK(indices.dim() == 1 || indices.dim() == 2,
                "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", indices.dim());
    TORCH_CHECK(indices.dim() != 1 || offsets.dim() == 1,
                "offsets has to be a 1D Tensor, but got Tensor of dimension ", offsets.dim());
}

void check_arguments(const Tensor& weight, const Tensor& indices, const Tensor& offsets, int64_t mode,
                     const Tensor& sample_weights, bool include_last_offset) {
    const char* name = "embedding_bag";
    const at::TensorArg indices_arg(indices, "indices", 1), offsets_arg(offsets, "offsets", 1),
        weight_arg(weight, "weight", 1);
    at::checkScalarTypes(name, indices_arg, {at::kLong, at::kInt});
    at::checkScalarTypes(name, offsets_arg, {at::kLong, at::kInt});
    at::checkSameType(name, indices_arg, offsets_arg);
    at::checkScalarTypes(name, weight_arg, {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble});
    if (sample_weights.defined()) {
        TORCH_CHECK(mode == kSum, "embedding_bag: per_sample_weights only supported with mode='sum'");
        at::checkSameType(name, weight_arg, at::TensorArg(sample_weights, "per_sample_weights", 1));
        TORCH_CHECK(sample_weights.dim() == 1);
        TORCH_CHECK(sample_weights.numel() == indices.numel());
    }
    TORCH_CHECK(!include_last_offset || offsets.size(0) >= 1,
                "include_last_offset: number of offset should be at least 1");
}

// -> (output, bag of each index, indices a bag without padding, row of each maximum). Offsets and indices are
// checked on the device: what is out of range raises at the next synchronization.
Bags embedding_bag(const Tensor& weight, const Tensor& indices_, const Tensor& offsets_, int64_t mode,
                   const Tensor& sample_weights, bool include_last_offset, int64_t padding_idx) {
    check_indices(indices_, offsets_);
    const bool wide = indices_.scalar_type() == at::kLong || offsets_.scalar_type() == at::kLong;
    const ScalarType index_type = wide ? at::kLong : indices_.scalar_type();
    const auto dense = [&](const Tensor& t) {
        return (at::isIntegralType(t.scalar_type(), false) ? t.to(index_type) : t).contiguous();
    };
    const Tensor indices = dense(indices_), offsets = dense(offsets_);
    check_arguments(weight, indices, offsets, mode, sample_weights, include_last_offset);
    TORCH_CHECK(weight.dim() == 2, "weight has to be a 2D Tensor, but got Tensor of dimension ",
                weight.dim());
    const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0), width = weight.size(1);
    const Tensor out = at::empty({bags, width}, weight.options());
    // Indices past the last offset belong to no bag: `bags` stands for that.
    const Tensor offset2bag = at::full(indices.sizes(), include_last_offset ? bags : 0, indices.options());
    // Sizes as PyTorch's meta function says them of devices other than the CPU.
    const Tensor bag_size = at::zeros(offsets.sizes(), indices.options());
    const Tensor max_indices =
        mode == kMax ? at::zeros({bags, width}, indices.options()) : at::empty({0}, indices.options());
    if (out.numel() == 0) return {out, offset2bag, bag_size, max_indices};
    TORCH_CHECK(out.numel() <= std::numeric_limits<uint32_t>::max(), "embedding_bag on MPS: ", out.numel(),
                " elements are more than 2^32 - 1");
    const auto error = runtime::encoder().error_slot("embedding_bag");
    const shaders::embedding_bag::EmbeddingBagArgs args{
        .out = kernels::address(out),
        .weight = kernels::address(weight),
        .indices = kernels::address(indices),
        .offsets = kernels::address(offsets),
        .sample_weights = kernels::address_or_0(sample_weights),
        .offset2bag = kernels::address(offset2bag),
        .bag_size = kernels::address(bag_size),
        .max_indices = kernels::address(max_indices),
        .error = error.address,
        .weight_strides = {weight.stride(0), weight.stride(1)},
        .sample_weights_stride = sample_weights.defined() ? sample_weights.stride(0) : 0,
        .rows = weight.size(0),
        .padding = padding_idx,
        .count = indices.numel(),
        .error_code = error.code,
        .bags = static_cast<uint32_t>(bags),
        .offset_count = static_cast<uint32_t>(offsets.size(0)),
        .width = kernels::FastDivider(static_cast<uint32_t>(width))};
    const uint32_t workgroup = kernels::flat_workgroup();
    shaders::embedding_bag::embedding_bag
        .call({.workgroup = workgroup,
               .type = kernels::code(weight.scalar_type()),
               .index_type = kernels::code(index_type),
               .mode = static_cast<uint32_t>(mode)})
        .read(weight)
        .read(indices)
        .read(offsets)
        .read(sample_weights)
        .write(out)
        .write(offset2bag)
        .write(bag_size)
        .write(max_indices)
        .dispatch(args, kernels::flat_grid(out.numel()));
    return {out, offset2bag, bag_size, max_indices};
}

// grad (bags, width) with a row of zeros for the indices in no bag, where there can be any.
Tensor with_row_of_no_bag(const Tensor& grad, const Tensor& offsets) {
    return offsets.size(0) > grad.size(0) ? at::constant_pad_nd(grad, {0, 0, 0, 1}) : grad;
}

}  // namespace

ANYMPS_ROW(_embedding_bag, embedding_bag(weight, indices, offsets, mode, defined(per_sample_weights),
                                         include_last_offset, padding_idx))
ANYMPS_ROW(_embedding_bag_forward_only,
           embedding_bag(weight, indices, offsets, mode, defined(per_sample_weights), include_last_offset,
                         padding_idx))

Tensor ANYMPS_FUNC(_embedding_bag_backward)(const Tensor& grad, const Tensor& indices, const Tensor& offsets,
                                            const Tensor& offset2bag, const Tensor& bag_size,
                                            const Tensor& maximum_indices, int64_t num_weights,
                                            bool scale_grad_by_freq, int64_t mode, bool sparse,
                                            const std::optional<Tensor>& per_sample_weights,
                                            int64_t padding_idx) {
    const bool gathers = mode != kMax;
    const Tensor known = bag_size.narrow(0, 0, grad.size(0));
    const Tensor sizes =
        gathers && offsets.size(0) > grad.size(0) ? at::constant_pad_nd(known, {0, 1}, 1) : known;
    return at::native::_embedding_bag_backward_symint(
        gathers ? with_row_of_no_bag(grad, offsets) : grad, indices, offsets, offset2bag, sizes,
        maximum_indices, num_weights, scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx);
}

Tensor ANYMPS_FUNC(_embedding_bag_dense_backward)(const Tensor& grad, const Tensor& indices,
                                                  const Tensor& offset2bag, const Tensor& bag_size,
                                                  const Tensor& maximum_indices, int64_t num_weights,
                                                  bool scale_grad_by_freq, int64_t mode,
                                                  const std::optional<Tensor>& per_sample_weights,
                                                  int64_t padding_idx) {
    at::checkScalarTypes("embedding_bag", at::TensorArg(grad, "grad_", 1),
                         {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble});
    const Tensor gradient = grad.to(at::kFloat);
    if (mode == kMax) {
        const Tensor weight = at::zeros({num_weights, grad.size(1)}, gradient.options());
        if (gradient.numel() == 0) return weight.to(grad.scalar_type());
        const Tensor rows = gradient.mul(bag_size.narrow(0, 0, grad.size(0)).ne(0).unsqueeze(1));
        indexed_copy_dim(
            weight, rows, maximum_indices, 0,
            {.op = "embedding_bag", .indexed_destination = true, .operation = IndexedOperation::Add});
        return weight.to(grad.scalar_type());
    }
    Tensor rows = gradient.index_select(0, offset2bag);
    if (mode == kMean)
        rows.div_(bag_size.clamp_min(1).to(at::kFloat).index_select(0, offset2bag).unsqueeze(1));
    if (per_sample_weights.has_value() && per_sample_weights->defined())
        rows.mul_(per_sample_weights->unsqueeze(1));
    return at::embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)
        .to(grad.scalar_type());
}

Tensor ANYMPS_FUNC(_embedding_bag_per_sample_weights_backward)(const Tensor& grad, const Tensor& weight,
                                                               const Tensor& indices, const Tensor& offsets,
                                                               const Tensor& offset2bag, int64_t mode,
                                                               int64_t padding_idx) {
    TORCH_CHECK(mode == kSum, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
    at::checkScalarTypes("embedding_bag", at::TensorArg(indices, "indices", 1), {at::kLong, at::kInt});
    const Tensor out = at::empty({indices.size(0)}, grad.options());
    if (out.numel() == 0) return out;
    const Tensor grads = with_row_of_no_bag(grad, offsets).index_select(0, offset2bag);
    kernels::reduce(rows::dot, {grads, weight.index_select(0, indices)}, kernels::DimMask(2), {out});
    return padding_idx < 0 ? out : out.masked_fill_(indices.eq(padding_idx), 0);
}

// Scales the rows of self that indices name and whose norm is above max_norm down to it, in place.
Tensor& ANYMPS_FUNC(embedding_renorm_)(Tensor& self, const Tensor& indices, double max_norm,
                                       double norm_type) {
    at::checkDim("embedding_renorm_", at::TensorArg(self, "self", 1), 2);
    at::checkScalarTypes("embedding_renorm_", at::TensorArg(indices, "indices", 2), {at::kLong, at::kInt});
    const Tensor index = indices.reshape(-1);
    if (index.numel() == 0) return self;
    // Where an index comes twice, both write the same row.
    return self.index_copy_(0, index.to(at::kLong),
                            at::renorm(self.index_select(0, index), norm_type, 0, max_norm));
}

}  // namespace anymps::ops
