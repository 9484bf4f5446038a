// Whole layers of torch.nn in one call: multi-head attention and the layer of a transformer's encoder.
// PyTorch has no derivatives of them.
#include <anymps/ops/attention/multi_head_ops.h>

#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/_masked_softmax.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"
#include "ops/softmax/masked_softmax.h"

namespace anymps::ops {
namespace {

void check_shapes(const Tensor& query, const Tensor& key, const Tensor& value, int64_t embed_dim,
                  int64_t heads, const Tensor& qkv_weight, const Tensor& qkv_bias) {
    TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
    TORCH_CHECK(query.size(2) == embed_dim, "passed-in embed_dim ", embed_dim,
                " didn't match last dim of query ", query.size(2));
    TORCH_CHECK(key.dim() == 3, "expected 3-D `key`, got ", key.dim(), "-D tensor");
    TORCH_CHECK(value.dim() == 3, "expected 3-D `value`, got ", value.dim(), "-D tensor");
    TORCH_CHECK(query.sizes() == key.sizes() && key.sizes() == value.sizes(),
                "expected `query`/`key`/`value` shapes to match");
    TORCH_CHECK(qkv_weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv_weight.dim(), "-D tensor");
    TORCH_CHECK(embed_dim * 3 == qkv_weight.size(0), "expected `qkv_weight` first dim to be 3x embed_dim");
    TORCH_CHECK(embed_dim == qkv_weight.size(1), "expected `qkv_weight` second dim to be embed_Dim");
    TORCH_CHECK(qkv_bias.dim() == 1, "expected 1-D `qkv_bias`, got ", qkv_bias.dim(), "-D tensor");
    TORCH_CHECK(qkv_bias.size(0) == 3 * embed_dim,
                "expected `qkv_bias` first dim and first dim of query to be equal");
    TORCH_CHECK(heads > 0 && embed_dim % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
    kernels::check_floating(query.scalar_type(), "transform_bias_rescale_qkv");
}

// [batch, length, 3 * embed_dim] of query, key and value; one product for those that are the same tensor.
Tensor project(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& weight,
               const std::optional<Tensor>& bias) {
    if (query.is_same(key) && key.is_same(value)) return at::linear(query, weight, bias);
    const int64_t size = query.size(2);
    const auto part = [&](const Tensor& input, int64_t first, int64_t count) {
        const auto narrow = [&](const Tensor& t) { return t.narrow(0, first * size, count * size); };
        return at::linear(input, narrow(weight), bias ? std::optional(narrow(*bias)) : std::nullopt);
    };
    if (key.is_same(value)) return at::cat({part(query, 0, 1), part(key, 1, 2)}, 2);
    return at::cat({part(query, 0, 1), part(key, 1, 1), part(value, 2, 1)}, 2);
}

// [batch, length, 3 * heads * size] -> [3, batch, heads, length, size], a view.
Tensor by_heads(const Tensor& qkv, int64_t heads) {
    return qkv.unflatten(2, {3, heads, qkv.size(2) / 3 / heads}).permute({2, 0, 3, 1, 4});
}

// The context [batch, heads, length, size] without the weights of attention. Rows without any key are NaN, as
// softmax makes them; scaled_dot_product_attention has zeros there.
Tensor fused_context(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
                     std::optional<int64_t> mask_type) {
    if (!mask) return at::scaled_dot_product_attention(q, k, v);
    const int64_t scores[] = {q.size(0), q.size(1), q.size(2), k.size(2)};
    const Tensor left_out = broadcast_mask(*mask, scores, mask_type);
    return at::scaled_dot_product_attention(q, k, v, left_out.logical_not())
        .masked_fill(left_out.all(-1, true), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

// Three of [batch, heads, length, size] in one block of memory: (q + bias) / sqrt(size), k + bias, v + bias.
std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(_transform_bias_rescale_qkv)(const Tensor& qkv,
                                                                            const Tensor& qkv_bias,
                                                                            int64_t num_head) {
    TORCH_CHECK(qkv.dim() == 3, "expected 3-D `qkv`, got ", qkv.dim(), "-D tensor");
    const int64_t _3D = qkv.size(2), D = _3D / 3;
    TORCH_CHECK(num_head > 0, "`num_heads` must be positive, got ", num_head);
    TORCH_CHECK(D % num_head == 0);
    TORCH_CHECK(_3D % 3 == 0);
    kernels::check_floating(qkv.scalar_type(), "transform_bias_rescale_qkv");
    const int64_t size = D / num_head;
    Tensor out = at::empty({3, qkv.size(0), num_head, qkv.size(1), size}, qkv.options());
    at::add_out(out, by_heads(qkv, num_head), qkv_bias.view({3, 1, num_head, 1, size}));
    return {out[0].mul_(1 / std::sqrt(static_cast<double>(size))), out[1], out[2]};
}

// query, key, value [batch, length, embed_dim] -> ([batch, length, embed_dim]; the weights of attention
// [batch, heads, length, length], averaged over heads or not, or undefined where they are not needed). A mask
// that is not of bool leaves out what is not zero.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_native_multi_head_attention)(
    const Tensor& query, const Tensor& key, const Tensor& value, int64_t embed_dim, int64_t num_head,
    const Tensor& qkv_weight, const Tensor& qkv_bias, const Tensor& proj_weight, const Tensor& proj_bias,
    const std::optional<Tensor>& mask_opt, bool need_weights, bool average_attn_weights,
    std::optional<int64_t> mask_type) {
    check_shapes(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias);
    if (query.numel() == 0) return {at::empty_like(query), Tensor()};
    std::optional<Tensor> mask;
    if (mask_opt && mask_opt->defined()) mask = mask_opt->to(at::kBool);
    Tensor context, weights;
    if (need_weights) {
        const auto [q, k, v] = at::_transform_bias_rescale_qkv(
            project(query, key, value, qkv_weight, std::nullopt), qkv_bias, num_head);
        const Tensor scores = at::matmul(q, k.mT());
        weights = mask ? at::_masked_softmax(scores, *mask, 3, mask_type) : at::_softmax(scores, 3, false);
        context = at::matmul(weights, v);
        if (average_attn_weights) weights = weights.mean(1);
    } else {
        const Tensor qkv = by_heads(project(query, key, value, qkv_weight, qkv_bias), num_head);
        context = fused_context(qkv[0], qkv[1], qkv[2], mask, mask_type);
    }
    return {at::linear(context.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights};
}

Tensor ANYMPS_FUNC(_transformer_encoder_layer_fwd)(
    const Tensor& src, int64_t embed_dim, int64_t num_heads, const Tensor& qkv_weight, const Tensor& qkv_bias,
    const Tensor& proj_weight, const Tensor& proj_bias, bool use_gelu, bool norm_first, double eps,
    const Tensor& norm_weight_1, const Tensor& norm_bias_1, const Tensor& norm_weight_2,
    const Tensor& norm_bias_2, const Tensor& ffn_weight_1, const Tensor& ffn_bias_1,
    const Tensor& ffn_weight_2, const Tensor& ffn_bias_2, const std::optional<Tensor>& mask,
    std::optional<int64_t> mask_type) {
    if (src.numel() == 0) return src.clone();
    const auto norm_1 = [&](const Tensor& x) {
        return at::layer_norm(x, embed_dim, norm_weight_1, norm_bias_1, eps);
    };
    const auto norm_2 = [&](const Tensor& x) {
        return at::layer_norm(x, embed_dim, norm_weight_2, norm_bias_2, eps);
    };
    const auto attend = [&](const Tensor& x) {
        return std::get<0>(at::_native_multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight,
                                                            qkv_bias, proj_weight, proj_bias, mask, false,
                                                            true, mask_type));
    };
    const auto feed_forward = [&](const Tensor& x) {
        TORCH_CHECK(ffn_weight_1.dim() == 2 && ffn_weight_2.dim() == 2, "2d weights expected");
        const Tensor hidden =
            at::_addmm_activation(ffn_bias_1, x.flatten(0, 1), ffn_weight_1.t(), 1, 1, use_gelu);
        return at::linear(hidden, ffn_weight_2, ffn_bias_2).view(x.sizes());
    };
    if (norm_first) {
        const Tensor x = attend(norm_1(src)).add_(src);
        return feed_forward(norm_2(x)).add_(x);
    }
    const Tensor x = norm_1(attend(src).add_(src));
    return norm_2(feed_forward(x).add_(x));
}

}  // namespace anymps::ops
