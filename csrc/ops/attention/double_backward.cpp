// The fused attention's gradients as functions that can be differentiated again.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>

#include "ops/attention/attention.h"
#include "ops/default_dispatch.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using c10::SymInt;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Which weights [batch, heads, l, s] dropout kept: what it makes of equal ones, by values that are unit
// vectors.
Tensor kept_weights(const Tensor& query, const Tensor& key, double dropout, const Tensor& seed,
                    const Tensor& offset) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        has_default_dispatch(query) && no_mode_is_active(),
        "scaled_dot_product_attention: second derivatives with dropout are not traced on mps");
    Attention a{};
    a.batch = query.size(0);
    a.heads = query.size(1);
    a.groups = 1;
    const int64_t l = query.size(2), s = key.size(2);
    const auto floats = query.options().dtype(at::kFloat);
    a.query = at::zeros({a.batch, a.heads, l, 1}, floats);
    a.key = at::zeros({a.batch, a.heads, s, 1}, floats);
    a.value = at::eye(s, floats).expand({a.batch, a.heads, s, s});
    a.scale = 1.0;
    a.dropout = dropout;
    a.random = random_of(seed, offset);
    const Tensor out = at::empty({a.batch, a.heads, l, s}, floats);
    if (out.numel() > 0) chunked_attention(a, out, at::empty({a.batch, a.heads, l}, floats));
    return out > 0;
}

// The sizes: scores [batch, heads of key, groups, l, s], of which query has all heads and key one a group.
Gradients differentiable_gradients(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                   const Tensor& value, const Tensor& attn_bias, std::array<bool, 4> wanted,
                                   const Tensor&, const Tensor&, const Tensor&, const Tensor&, SymInt, SymInt,
                                   double dropout_p, bool is_causal, const Tensor& philox_seed,
                                   const Tensor& philox_offset, std::optional<double> scale) {
    const SymInt batch = query.sym_size(0), heads = key.sym_size(1), l = query.sym_size(2),
                 s = key.sym_size(2);
    const auto floats = [](const Tensor& t) {
        return at::isReducedFloatingType(t.scalar_type()) ? t.to(at::kFloat) : t;
    };
    const bool headless = TORCH_GUARD_OR_FALSE(heads.sym_eq(0));
    const auto grouped = [&](const Tensor& t) {
        const SymInt groups = headless ? SymInt(1) : t.sym_size(1) / heads;
        return t.reshape_symint({batch, heads, groups, t.sym_size(2), t.sym_size(3)});
    };
    const Tensor q = grouped(floats(query)), k = grouped(floats(key)), v = grouped(floats(value)),
                 g = grouped(floats(grad_out));
    const c10::SymFloat factor =
        scale.has_value() ? *scale : c10::SymFloat(1.0) / c10::SymFloat(query.sym_size(3)).sqrt();
    Tensor scores = at::matmul(q, k.transpose(-2, -1)) * factor;
    if (is_causal) {
        const Tensor seen = at::ones_symint({l, s}, query.options().dtype(at::kBool)).tril();
        scores = scores.masked_fill(seen.logical_not(), kMinusInfinity);
    }
    if (attn_bias.defined()) {
        const Tensor bias = grouped(attn_bias.expand_symint({batch, query.sym_size(1), l, s}));
        scores = bias.scalar_type() == at::kBool ? scores.masked_fill(bias.logical_not(), kMinusInfinity)
                                                 : scores + floats(bias);
    }
    const Tensor weights = attn_bias.defined() ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
    Tensor kept;
    if (dropout_p > 0.0) kept = grouped(kept_weights(query, key, dropout_p, philox_seed, philox_offset));
    const auto dropped = [&](const Tensor& t) {
        if (!kept.defined()) return t;
        return t * kept * (dropout_p < 1.0 ? 1.0 / (1.0 - dropout_p) : 0.0);
    };
    const Tensor grad_value = at::matmul(dropped(weights).transpose(-2, -1), g);
    const Tensor grad_weights = dropped(at::matmul(g, v.transpose(-2, -1)));
    const Tensor grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, true));
    const auto back = [](const Tensor& t, const Tensor& like) {
        return t.reshape_symint(like.sym_sizes()).to(like.scalar_type());
    };
    const Tensor grad_query = back(at::matmul(grad_scores, k) * factor, query);
    const Tensor grad_key = back((at::matmul(grad_scores.transpose(-2, -1), q) * factor).sum(2), key);
    Tensor grad_bias;
    if (wanted[3] && attn_bias.defined() && attn_bias.is_floating_point()) {
        const Tensor full = grad_scores.reshape_symint({batch, query.sym_size(1), l, s});
        grad_bias = at::sum_to(full, attn_bias.sym_sizes()).to(attn_bias.scalar_type());
    }
    return {grad_query, grad_key, back(grad_value.sum(2), value), grad_bias};
}

// derivatives.yaml has no formula for this operator.
Gradients fused_attention_backward(c10::DispatchKeySet keys, const Tensor& grad_out, const Tensor& query,
                                   const Tensor& key, const Tensor& value, const Tensor& attn_bias,
                                   std::array<bool, 4> wanted, const Tensor& out, const Tensor& logsumexp,
                                   const Tensor& cum_seq_q, const Tensor& cum_seq_k, SymInt max_q,
                                   SymInt max_k, double dropout_p, bool is_causal, const Tensor& philox_seed,
                                   const Tensor& philox_offset, std::optional<double> scale) {
    const auto is_followed = [](const Tensor& t) {
        return t.defined() && ((at::GradMode::is_enabled() && t.requires_grad()) || has_forward_gradient(t));
    };
    if (is_followed(grad_out) || is_followed(query) || is_followed(key) || is_followed(value) ||
        is_followed(attn_bias))
        return differentiable_gradients(grad_out, query, key, value, attn_bias, wanted, out, logsumexp,
                                        cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
                                        philox_offset, scale);
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::_ops::_scaled_dot_product_fused_attention_overrideable_backward::redispatch(
        keys & c10::after_autograd_keyset, grad_out, query, key, value, attn_bias, wanted, out, logsumexp,
        cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale);
}

constexpr const char* kBackward = "_scaled_dot_product_fused_attention_overrideable_backward";

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    m.impl(kBackward, TORCH_FN(fused_attention_backward));
}
TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m) {
    m.impl(kBackward, TORCH_FN(differentiable_gradients));  // torch.autograd.grad(is_grads_batched=True)
}

}  // namespace
}  // namespace anymps::ops
