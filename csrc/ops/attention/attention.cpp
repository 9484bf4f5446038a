// The fused core of scaled_dot_product_attention and its derivative; which of the ways computes it.
#include <anymps/ops/attention/attention_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>
#include <numeric>

#include "kernels/route.h"
#include "ops/attention/call.h"
#include "ops/same_dtype.h"
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
    // Of vectors without elements every score is zero.
    a.scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(query.size(-1), 1))));
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

template <class Run>
struct Way {
    const char* name;
    bool (*supports)(const AttentionProblem&, const kernels::RouteDevice&);
    Run* run;
};
constexpr Way<decltype(chunked_attention)> kForward[] = {
    {"decode", decode_attention_takes, decode_attention},
    {"flash", flash_attention_takes, flash_attention},
    {"flash_simt", flash_simt_attention_takes, flash_simt_attention},
    {"chunked", kernels::always, chunked_attention},
};
constexpr Way<decltype(chunked_attention_backward)> kBackward[] = {
    {"flash", flash_attention_takes, flash_attention_backward},
    {"flash_simt", flash_simt_attention_backward_takes, flash_simt_attention_backward},
    {"chunked", kernels::always, chunked_attention_backward},
};

// Into `gradients`, which are not empty.
void differentiate(const Attention& a, const Tensor& grad_out, const Tensor& out, const Tensor& logsumexp,
                   const AttentionGradients& gradients) {
    kernels::choose("attention_backward", kBackward, problem_of(a))
        .run(a, grad_out, out, logsumexp, gradients);
}

}  // namespace

AttentionProblem problem_of(const Attention& a) {
    return {.type = a.query.scalar_type(),
            .queries = a.l(),
            .keys = a.s(),
            .size = std::max(a.query.size(3), a.value.size(3)),
            .dropout = a.dropout != 0.0,
            .causal = a.causal,
            .strides_fit = strides_fit(a)};
}

std::string to_text(const AttentionProblem& p) {
    return c10::str(p.type, " ", p.queries, " queries, ", p.keys, " keys of ", p.size,
                    p.dropout ? ", dropout" : "", p.causal ? ", causal" : "");
}

const char* attention_route(const AttentionProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kForward, problem, device).name;
}

const char* attention_backward_route(const AttentionProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kBackward, problem, device).name;
}

runtime::PhiloxState random_of(const Tensor& philox_seed, const Tensor& philox_offset) {
    return {static_cast<uint64_t>(philox_seed.item<int64_t>()),
            static_cast<uint64_t>(philox_offset.item<int64_t>())};
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
        kernels::choose("attention", kForward, problem_of(a)).run(a, out, lse);
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
    if (dropout_p > 0.0) a.random = random_of(philox_seed, philox_offset);
    const bool some = grad_out.numel() > 0 && a.s() > 0;
    const auto gradient_of = [&](const Tensor& t) { return some ? at::empty_like(t) : at::zeros_like(t); };
    AttentionGradients gradients{gradient_of(query), gradient_of(key), gradient_of(value), Tensor()};
    if (grad_input_mask[3] && a.bias.defined() && a.bias.is_floating_point()) {
        gradients.bias = at::zeros({a.batch, a.heads, a.l(), a.s()}, query.options().dtype(at::kFloat));
    }
    if (some) differentiate(a, grad_out, out, logsumexp, gradients);
    if (gradients.bias.defined())
        gradients.bias = at::sum_to(gradients.bias, attn_bias.sizes()).to(attn_bias.scalar_type());
    return {gradients.query, gradients.key, gradients.value, gradients.bias};
}

namespace {

// [batch, rows, columns of all heads]: the gradients of query, key and value side by side, as the projection
// to all three has them. query [batch, heads, rows, size], key and value [batch, kv_heads, rows, size].
Tensor empty_gradients_in_one(const Tensor& query, const Tensor& key) {
    const c10::SymInt columns = (query.sym_size(1) + key.sym_size(1) * 2) * query.sym_size(3);
    return at::empty_symint({query.sym_size(0), query.sym_size(2), columns}, query.options());
}

// _scaled_dot_product_fused_attention_overrideable_backward, but for the bias, with the gradients in one
// tensor: graphs of torch.compile call it where they would be copied into one.
Tensor attention_backward_in_one(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                 const Tensor& value, const std::optional<Tensor>& attn_bias,
                                 const Tensor& out, const Tensor& logsumexp, double dropout_p, bool is_causal,
                                 const Tensor& philox_seed, const Tensor& philox_offset,
                                 std::optional<double> scale) {
    TORCH_CHECK(key.size(2) == query.size(2) && key.sizes() == value.sizes(),
                "attention_backward_in_one: expected query, key and value of as many rows, but got ",
                query.sizes(), ", ", key.sizes(), " and ", value.sizes());
    Attention a = attention(query, key, value, attn_bias.value_or(Tensor()), dropout_p, is_causal, scale);
    if (dropout_p > 0.0) a.random = random_of(philox_seed, philox_offset);
    const Tensor all = empty_gradients_in_one(query, key);
    if (grad_out.numel() == 0) return all.zero_();
    const auto part = [&](int64_t first_head, const Tensor& like) {
        const int64_t size = like.size(3);
        return all.as_strided(like.sizes(), {all.stride(0), size, all.stride(1), 1}, first_head * size);
    };
    const int64_t heads = query.size(1), kv_heads = key.size(1);
    differentiate(a, grad_out, out, logsumexp,
                  {part(0, query), part(heads, key), part(heads + kv_heads, value), Tensor()});
    return all;
}

Tensor attention_backward_in_one_meta(const Tensor&, const Tensor& query, const Tensor& key, const Tensor&,
                                      const std::optional<Tensor>&, const Tensor&, const Tensor&, double,
                                      bool, const Tensor&, const Tensor&, std::optional<double>) {
    return empty_gradients_in_one(query, key);
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def(
        "attention_backward_in_one(Tensor grad_out, Tensor query, Tensor key, Tensor value, "
        "Tensor? attn_bias, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, "
        "Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(anymps, MPS, m) {
    m.impl("attention_backward_in_one", TORCH_FN(attention_backward_in_one));
}
TORCH_LIBRARY_IMPL(anymps, Meta, m) {
    m.impl("attention_backward_in_one", TORCH_FN(attention_backward_in_one_meta));
}

constexpr const char* kForCpu = "scaled_dot_product_attention_flash_attention: ";

void check_for_cpu(const Tensor& query, const Tensor& key, const Tensor& value, double dropout,
                   const std::optional<Tensor>& mask) {
    TORCH_CHECK(c10::isFloatingType(query.scalar_type()), kForCpu,
                "Expected data type in FP32, FP64, BF16, FP16, but got ", query.scalar_type(), " instead.");
    TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, kForCpu,
                "Accept only 4 dims inputs shape of {B, H, T, K}");
    TORCH_CHECK(dropout == 0.0, kForCpu, "Currently do not support dropout > 0");
    TORCH_CHECK(query.size(3) == value.size(3) && key.size(3) == value.size(3), kForCpu,
                "Q/K/V should have the same head size");
    TORCH_CHECK(key.sizes() == value.sizes() && query.size(0) == key.size(0) && query.size(1) == key.size(1),
                kForCpu, "Q/K/V should have the same batch and heads, K/V the same length");
    check_same_dtype_as(query, key);
    check_same_dtype_as(query, value);
    if (!mask.has_value() || !mask->defined()) return;
    TORCH_CHECK(mask->scalar_type() == at::kFloat || mask->scalar_type() == query.scalar_type(), kForCpu,
                "Attention mask is the same data type as query");
    TORCH_CHECK(mask->dim() == 2 || mask->dim() == 4, kForCpu, "Attention mask dim in {2, 4}");
}

}  // namespace

// The CPU's form of the fused operator, which programs that were exported on the CPU call:
// softmax(q k^T * scale + mask) v and the logarithms of the sums.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_scaled_dot_product_flash_attention_for_cpu)(
    const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
    const std::optional<Tensor>& attn_mask, std::optional<double> scale) {
    check_for_cpu(query, key, value, dropout_p, attn_mask);
    auto result = _scaled_dot_product_fused_attention_overrideable(query, key, value, attn_mask, 0.0,
                                                                   is_causal, false, scale);
    return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(_scaled_dot_product_flash_attention_for_cpu_backward)(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
    const Tensor& logsumexp, double dropout_p, bool is_causal, const std::optional<Tensor>& attn_mask,
    std::optional<double> scale) {
    if (!grad_out.defined()) return {};
    check_for_cpu(query, key, value, dropout_p, attn_mask);
    auto gradients = _scaled_dot_product_fused_attention_overrideable_backward(
        grad_out, query, key, value, attn_mask.value_or(Tensor()), {true, true, true, false}, out, logsumexp,
        Tensor(), Tensor(), query.size(2), key.size(2), 0.0, is_causal, Tensor(), Tensor(), scale);
    return {std::get<0>(gradients), std::get<1>(gradients), std::get<2>(gradients)};
}

}  // namespace anymps::ops
