// scaled_dot_product_attention: products, a fused softmax over score rows, products; a part of the heads at a
// time, so that the scores of all of them never exist at once.
#include <anymps/ops/attention_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>

#include "kernels/kernel_call.h"
#include "ops/matmul/gemm.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

constexpr int64_t kMostScoreBytes = 256ll << 20;  // of one part of the heads

// Twin of AttentionArgs in shaders/attention.slang.
struct AttentionArgs {
    uint64_t scores, grads, bias, lse, delta, keep;
    uint32_t batch, rows, columns, first_batch, heads;
    uint32_t bias_batch, bias_head, bias_row, bias_column;
    float scale, keep_scale;
};

// One call's tensors with batch and heads merged: query [z, l, e], key [z, s, e], value [z, s, v].
struct Attention {
    Tensor query, key, value, bias,
        keep;                      // bias [batch, heads, l, s] or undefined; keep [z, l, s] bool or undefined
    int64_t batch, heads, groups;  // query heads a key head
    bool causal;
    double scale, dropout;

    int64_t z() const { return batch * heads; }
    int64_t l() const { return query.size(1); }
    int64_t s() const { return key.size(1); }
    int64_t part() const {
        return std::clamp<int64_t>(kMostScoreBytes / std::max<int64_t>(1, l() * s() * 4), 1, z());
    }
};

// [batch, kv heads, s, e] -> [batch * heads, s, e].
Tensor merged(const Tensor& t, int64_t groups) {
    if (groups == 1) return t.reshape({t.size(0) * t.size(1), t.size(2), t.size(3)});
    return t.unsqueeze(2)
        .expand({t.size(0), t.size(1), groups, t.size(2), t.size(3)})
        .reshape({t.size(0) * t.size(1) * groups, t.size(2), t.size(3)});
}

Attention attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
                    double dropout, bool causal, std::optional<double> scale) {
    Attention a;
    a.batch = query.size(0);
    a.heads = query.size(1);
    a.groups = key.size(1) == 0 ? 1 : a.heads / key.size(1);
    a.query = merged(query, 1);
    a.key = merged(key, a.groups);
    a.value = merged(value, a.groups);
    a.causal = causal;
    a.scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
    a.dropout = dropout;
    if (bias.defined()) a.bias = bias.expand({a.batch, a.heads, query.size(2), key.size(2)});
    return a;
}

void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& out,
          double alpha) {
    const Matrices left = transpose_a ? matrices(a).transposed() : matrices(a);
    const Matrices right = transpose_b ? matrices(b).transposed() : matrices(b);
    Gemm{.name = "scaled_dot_product_attention",
         .batch = out.size(0),
         .m = out.size(1),
         .n = out.size(2),
         .k = a.size(transpose_a ? 1 : 2),
         .a = left,
         .b = right,
         .out = matrices(out),
         .self = kNoMatrices,
         .alpha = alpha}
        .run();
}

// Runs one of the row kernels over the heads [first, first + scores.size(0)).
void rows(const char* kernel, const Attention& a, int64_t first, const Tensor& scores, const Tensor& grads,
          const Tensor& lse, const Tensor& delta) {
    const auto address = [](const Tensor& t) { return t.defined() ? kernels::address(t) : 0; };
    const int64_t count = scores.size(0);
    const Tensor keep = a.keep.defined() ? a.keep.narrow(0, first, count) : a.keep;
    AttentionArgs args{address(scores), address(grads), address(a.bias),
                       address(lse),    address(delta), address(keep)};
    args.batch = static_cast<uint32_t>(count);
    args.rows = static_cast<uint32_t>(a.l());
    args.columns = static_cast<uint32_t>(a.s());
    args.first_batch = static_cast<uint32_t>(first);
    args.heads = static_cast<uint32_t>(a.heads);
    uint32_t bias_type = kernels::code(at::kFloat);
    if (a.bias.defined()) {
        bias_type = kernels::code(a.bias.scalar_type());
        uint32_t* strides[] = {&args.bias_batch, &args.bias_head, &args.bias_row, &args.bias_column};
        for (int d = 0; d < 4; ++d) *strides[d] = static_cast<uint32_t>(a.bias.stride(d));
    }
    args.scale = static_cast<float>(a.scale);
    args.keep_scale = a.dropout < 1.0 ? static_cast<float>(1.0 / (1.0 - a.dropout)) : 0.0f;
    const auto& info = runtime::device().info();
    const uint32_t workgroup = info.is_software ? info.subgroup_size : std::max(info.subgroup_size, 64u);
    kernels::KernelCall call(
        kernel, {workgroup, info.subgroup_size, bias_type, a.bias.defined(), a.causal, keep.defined()});
    call.write(scores).read(a.bias).read(keep).read(delta);
    grads.defined() ? call.write(grads).read(lse) : call.write(lse);
    call.dispatch_pointer(args, kernels::Grid::linear(static_cast<uint64_t>(count) * args.rows));
}

Tensor scores_for(const Attention& a, int64_t count) {
    TORCH_CHECK(count * a.l() <= UINT32_MAX,
                "scaled_dot_product_attention: too many query rows for the mps device");
    return at::empty({count, a.l(), a.s()}, a.query.options().dtype(at::kFloat));
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

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> ANYMPS_FUNC(
    _scaled_dot_product_fused_attention_overrideable)(const Tensor& query, const Tensor& key,
                                                      const Tensor& value,
                                                      const std::optional<Tensor>& attn_bias,
                                                      double dropout_p, bool is_causal,
                                                      bool return_debug_mask, std::optional<double> scale) {
    Attention a = attention(query, key, value, attn_bias.value_or(Tensor()), dropout_p, is_causal, scale);
    const Tensor out = at::empty({a.batch, a.heads, a.l(), a.value.size(2)}, query.options());
    const Tensor lse = at::empty({a.batch, a.heads, a.l()}, query.options().dtype(at::kFloat));
    // What dropout keeps is remembered whole: the backward must see the same.
    if (dropout_p > 0.0)
        a.keep =
            at::empty({a.z(), a.l(), a.s()}, query.options().dtype(at::kBool)).bernoulli_(1.0 - dropout_p);
    const Tensor merged_out = out.view({a.z(), a.l(), -1}), merged_lse = lse.view({a.z(), a.l()});
    if (out.numel() > 0 && a.s() == 0) merged_out.zero_();
    const int64_t part = a.part();
    const Tensor buffer = out.numel() > 0 && a.s() > 0 ? scores_for(a, part) : Tensor();
    for (int64_t first = 0; buffer.defined() && first < a.z(); first += part) {
        const int64_t count = std::min(part, a.z() - first);
        const auto of = [&](const Tensor& t) { return t.narrow(0, first, count); };
        const Tensor scores = buffer.narrow(0, 0, count);
        gemm(of(a.query), false, of(a.key), true, scores, 1.0);
        rows("attention_softmax", a, first, scores, {}, of(merged_lse), {});
        gemm(scores, false, of(a.value), false, of(merged_out), 1.0);
    }
    return {out,
            lse,
            Tensor(),
            Tensor(),
            a.l(),
            a.s(),
            a.keep.defined() ? a.keep : at::empty({0}, query.options().dtype(at::kBool)),
            at::empty({0}, query.options().dtype(at::kLong)),
            Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> ANYMPS_FUNC(
    _scaled_dot_product_fused_attention_overrideable_backward)(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const Tensor& out, const Tensor& logsumexp,
    const Tensor& cum_seq_q, const Tensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p,
    bool is_causal, const Tensor& philox_seed, const Tensor& philox_offset, std::optional<double> scale) {
    Attention a = attention(query, key, value, attn_bias, dropout_p, is_causal, scale);
    if (dropout_p > 0.0) a.keep = philox_seed;
    const Tensor grad = merged(grad_out, 1);
    const Tensor lse = logsumexp.view({a.z(), a.l()});
    const Tensor delta = at::sum(at::mul(grad.to(at::kFloat), merged(out, 1).to(at::kFloat)), -1);
    // Several query heads add up in one key head: in float.
    const auto wide = a.groups > 1 ? a.query.options().dtype(at::kFloat) : a.query.options();
    const Tensor grad_query = at::zeros(a.query.sizes(), a.query.options());
    const Tensor grad_key = at::zeros(a.key.sizes(), wide);
    const Tensor grad_value = at::zeros(a.value.sizes(), wide);
    const bool needs_bias = grad_input_mask[3] && a.bias.defined() && a.bias.is_floating_point();
    Tensor grad_bias;
    if (needs_bias) grad_bias = at::zeros({a.z(), a.l(), a.s()}, wide.dtype(at::kFloat));
    const bool some = grad_out.numel() > 0 && a.s() > 0;
    const int64_t part = a.part();
    const Tensor buffer = some ? scores_for(a, part) : Tensor(),
                 grad_buffer = some ? scores_for(a, part) : Tensor();
    for (int64_t first = 0; some && first < a.z(); first += part) {
        const int64_t count = std::min(part, a.z() - first);
        const auto of = [&](const Tensor& t) { return t.narrow(0, first, count); };
        const Tensor scores = buffer.narrow(0, 0, count);
        const Tensor grads = needs_bias ? of(grad_bias) : grad_buffer.narrow(0, 0, count);
        gemm(of(a.query), false, of(a.key), true, scores, 1.0);
        gemm(of(grad), false, of(a.value), true, grads, 1.0);
        rows("attention_softmax_backward", a, first, scores, grads, of(lse), of(delta));
        gemm(scores, true, of(grad), false, of(grad_value), 1.0);
        gemm(grads, false, of(a.key), false, of(grad_query), a.scale);
        gemm(grads, true, of(a.query), false, of(grad_key), a.scale);
    }
    const auto split = [&](const Tensor& t, const Tensor& like) {
        if (a.groups == 1) return t.view(like.sizes());
        const Tensor grouped = t.view({like.size(0), like.size(1), a.groups, like.size(2), like.size(3)});
        return at::sum(grouped, 2).to(like.scalar_type());
    };
    if (needs_bias) {
        grad_bias = at::sum_to(grad_bias.view({a.batch, a.heads, a.l(), a.s()}), attn_bias.sizes())
                        .to(attn_bias.scalar_type());
    }
    return {grad_query.view(query.sizes()), split(grad_key, key), split(grad_value, value), grad_bias};
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    // Differentiable through the fused entry's own derivative.
    m.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

}  // namespace anymps::ops
