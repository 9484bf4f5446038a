// scaled_dot_product_attention and its fused core with the derivative; which of the ways computes it.
#include <anymps/ops/attention/attention_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>
#include <numeric>

#include "ops/attention/attention.h"
#include "runtime/generator.h"

namespace anymps::ops {
namespace {

Attention attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
                    double dropout, bool causal, std::optional<double> scale) {
    Attention a{};
    a.batch = query.size(0);
    a.heads = query.size(1);
    a.groups = key.size(1) == 0 ? 1 : a.heads / key.size(1);
    a.query = query;
    a.key = key;
    a.value = value;
    a.causal = causal;
    a.scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
    a.dropout = dropout;
    if (bias.defined()) a.bias = bias.expand({a.batch, a.heads, a.l(), a.s()});
    return a;
}

// An uninitialized tensor whose dimensions lie in memory in the order of those of `like`.
Tensor empty_in_order_of(const Tensor& like, IntArrayRef sizes) {
    if (like.sizes() == sizes) return at::empty_like(like);
    std::vector<int64_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return like.stride(a) > like.stride(b); });
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
        strides[*d] = stride;
        stride *= std::max<int64_t>(1, sizes[*d]);
    }
    return at::empty_strided(sizes, strides, like.options());
}

void check_inputs(const Tensor& query, const Tensor& key, const Tensor& value,
                  const std::optional<Tensor>& mask, bool causal) {
    TORCH_CHECK(query.dtype() == key.dtype() && query.dtype() == value.dtype(),
                "Expected query, key, and value to have the same dtype, but got query.dtype: ", query.dtype(),
                " key.dtype: ", key.dtype(), " and value.dtype: ", value.dtype(), " instead.");
    TORCH_CHECK(
        query.device() == key.device() && query.device() == value.device(),
        "Expected query, key, and value to have the same device type, but got query.device: ", query.device(),
        " key.device: ", key.device(), " and value.device: ", value.device(), " instead.");
    TORCH_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
                "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: ",
                query.dim(), " key.dim: ", key.dim(), " and value.dim: ", value.dim(), " instead.");
    TORCH_CHECK(at::isFloatingType(query.scalar_type()),
                "scaled_dot_product_attention: expected floating point inputs, got ", query.scalar_type());
    if (!mask.has_value() || !mask->defined()) return;
    TORCH_CHECK(
        mask->scalar_type() == at::kBool || mask->scalar_type() == at::kFloat ||
            mask->dtype() == query.dtype(),
        "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: ",
        mask->dtype(), " and  query.dtype: ", query.dtype(), " instead.");
    TORCH_CHECK(!causal, "Explicit attn_mask should not be set when is_causal=True");
}

// Leading dimensions broadcast and merged so that the tensor is [batch, heads, rows, columns].
Tensor four_dims(const Tensor& t, IntArrayRef leading) {
    auto sizes = leading.vec();
    sizes.insert(sizes.end(), {t.size(-2), t.size(-1)});
    Tensor wide = t.expand(sizes);
    while (wide.dim() < 4) wide = wide.unsqueeze(0);
    return wide.dim() == 4 ? wide : wide.flatten(0, wide.dim() - 4);
}

}  // namespace

Tensor ANYMPS_FUNC(scaled_dot_product_attention)(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 const std::optional<Tensor>& attn_mask, double dropout_p,
                                                 bool is_causal, std::optional<double> scale,
                                                 bool enable_gqa) {
    check_inputs(query, key, value, attn_mask, is_causal);
    const auto leading = [](const Tensor& t) { return t.sizes().slice(0, t.dim() - 2); };
    std::vector<int64_t> batch = at::infer_size(leading(key), leading(value));
    std::vector<int64_t> query_batch = leading(query).vec();
    std::vector<int64_t> key_batch = batch;
    if (enable_gqa) {
        TORCH_CHECK(query.dim() >= 3 && key.size(-3) > 0 && query.size(-3) % key.size(-3) == 0 &&
                        key.size(-3) == value.size(-3),
                    "Number of heads in key and value must divide the number of heads in query, got ",
                    query.sizes(), " and ", key.sizes());
        // Broadcast all but the heads.
        const auto outer = at::infer_size(IntArrayRef(query_batch).slice(0, query_batch.size() - 1),
                                          IntArrayRef(batch).slice(0, batch.size() - 1));
        key_batch = outer;
        key_batch.push_back(key.size(-3));
        query_batch = outer;
        query_batch.push_back(query.size(-3));
    } else {
        query_batch = key_batch = at::infer_size(query_batch, batch);
    }
    Tensor bias;
    if (attn_mask.has_value() && attn_mask->defined()) {
        auto sizes = query_batch;
        sizes.insert(sizes.end(), {query.size(-2), key.size(-2)});
        TORCH_CHECK(at::is_expandable_to(attn_mask->sizes(), sizes),
                    "The expanded size of the tensor attn_mask ", attn_mask->sizes(),
                    " must match the attention scores ", IntArrayRef(sizes));
        bias = four_dims(
            attn_mask->dim() < 2 ? attn_mask->expand({query.size(-2), key.size(-2)}) : attn_mask->expand([&] {
                auto s = attn_mask->sizes().vec();
                s[s.size() - 2] = query.size(-2);
                s[s.size() - 1] = key.size(-2);
                return s;
            }()),
            query_batch);
    }
    const Tensor out = std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
        four_dims(query, query_batch), four_dims(key, key_batch), four_dims(value, key_batch), bias,
        dropout_p, is_causal, false, scale));
    auto sizes = query_batch;
    sizes.insert(sizes.end(), {query.size(-2), value.size(-1)});
    return out.view(sizes);
}

// Saves of dropout only where its numbers begin: the seed and the offset, on the CPU.
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> ANYMPS_FUNC(
    _scaled_dot_product_fused_attention_overrideable)(const Tensor& query, const Tensor& key,
                                                      const Tensor& value,
                                                      const std::optional<Tensor>& attn_bias,
                                                      double dropout_p, bool is_causal,
                                                      bool return_debug_mask, std::optional<double> scale) {
    Attention a = attention(query, key, value, attn_bias.value_or(Tensor()), dropout_p, is_causal, scale);
    const Tensor out = empty_in_order_of(query, {a.batch, a.heads, a.l(), value.size(3)});
    const Tensor lse = at::empty({a.batch, a.heads, a.l()}, query.options().dtype(at::kFloat));
    if (dropout_p > 0.0)
        a.random = runtime::reserve_philox(std::nullopt, a.random_blocks() * runtime::kNumbersPerBlock);
    if (out.numel() > 0 && a.s() == 0) {
        out.zero_();
    } else if (out.numel() > 0) {
        const auto forward = decode_attention_takes(a)  ? decode_attention
                             : flash_attention_takes(a) ? flash_attention
                                                        : chunked_attention;
        forward(a, out, lse);
    }
    const auto host = [](uint64_t number) {
        return at::scalar_tensor(static_cast<int64_t>(number), at::kLong);
    };
    return {out, lse, Tensor(), Tensor(), a.l(), a.s(), host(a.random.seed), host(a.random.offset), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> ANYMPS_FUNC(
    _scaled_dot_product_fused_attention_overrideable_backward)(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const Tensor& out, const Tensor& logsumexp,
    const Tensor& cum_seq_q, const Tensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p,
    bool is_causal, const Tensor& philox_seed, const Tensor& philox_offset, std::optional<double> scale) {
    Attention a = attention(query, key, value, attn_bias, dropout_p, is_causal, scale);
    if (dropout_p > 0.0)
        a.random = {static_cast<uint64_t>(philox_seed.item<int64_t>()),
                    static_cast<uint64_t>(philox_offset.item<int64_t>())};
    const bool some = grad_out.numel() > 0 && a.s() > 0;
    const auto gradient_of = [&](const Tensor& t) { return some ? at::empty_like(t) : at::zeros_like(t); };
    AttentionGradients gradients{gradient_of(query), gradient_of(key), gradient_of(value), Tensor()};
    if (grad_input_mask[3] && a.bias.defined() && a.bias.is_floating_point()) {
        gradients.bias = at::zeros({a.batch, a.heads, a.l(), a.s()}, query.options().dtype(at::kFloat));
    }
    if (some) {
        const auto backward =
            flash_attention_takes(a) ? flash_attention_backward : chunked_attention_backward;
        backward(a, grad_out, out, logsumexp, gradients);
    }
    if (gradients.bias.defined())
        gradients.bias = at::sum_to(gradients.bias, attn_bias.sizes()).to(attn_bias.scalar_type());
    return {gradients.query, gradients.key, gradients.value, gradients.bias};
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    // Differentiable through the fused entry's own derivative.
    m.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

}  // namespace anymps::ops
