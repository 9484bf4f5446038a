// scaled_dot_product_attention, and what computes a call: the fused operator or PyTorch's math.
#include <anymps/ops/attention/sdpa_ops.h>

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/new_ones.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "ops/default_dispatch.h"

namespace anymps::ops {
namespace {

void check_inputs(const Tensor& query, const Tensor& key, const Tensor& value,
                  const std::optional<Tensor>& mask, double dropout_p, bool causal) {
    TORCH_CHECK(dropout_p >= 0 && dropout_p <= 1, "dropout probability has to be between 0 and 1, but got ",
                dropout_p);
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

// Of what torch.nn.attention.sdpa_kernel leaves: every backend but math is the fused operator here.
at::SDPBackend allowed_backend() {
    const auto& context = at::globalContext();
    if (context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
        context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP())
        return at::SDPBackend::overrideable;
    TORCH_CHECK(context.userEnabledMathSDP(),
                "No viable backend for scaled_dot_product_attention was found.");
    return at::SDPBackend::math;
}

constexpr const char* kHeadsMustDivide =
    "Number of heads in key and value must divide the number of heads in query, got ";

bool are_same(const c10::SymInt& a, const c10::SymInt& b) {
    return TORCH_GUARD_OR_FALSE(a.sym_eq(b));
}

// A head of each for each of the query's, of which there may be none.
bool has_equal_heads(const Tensor& query, const Tensor& key, const Tensor& value) {
    return query.dim() >= 3 && key.dim() >= 3 && value.dim() >= 3 &&
           are_same(query.sym_size(-3), key.sym_size(-3)) && are_same(key.sym_size(-3), value.sym_size(-3));
}

// PyTorch's math, which takes no mask of bool when it is called directly: the result, and the weights of
// value.
std::tuple<Tensor, Tensor> math_with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const std::optional<Tensor>& attn_mask, double dropout_p,
                                             bool is_causal, const std::optional<Tensor>& dropout_mask,
                                             std::optional<double> scale, bool enable_gqa) {
    std::optional<Tensor> bias = attn_mask;
    enable_gqa = enable_gqa && !has_equal_heads(query, key, value);
    TORCH_CHECK(!enable_gqa || (key.dim() >= 3 && !are_same(key.sym_size(-3), 0)), kHeadsMustDivide,
                query.sym_sizes(), " and ", key.sym_sizes());  // PyTorch divides by it
    // PyTorch's own mask is a plain tensor, which DTensor does not add to its own.
    if (is_causal && !(bias.has_value() && bias->defined()) &&
        query.unsafeGetTensorImpl()->is_python_dispatch()) {
        bias = at::tril(query.new_ones_symint({query.sym_size(-2), key.sym_size(-2)}, at::kBool));
        is_causal = false;
    }
    if (bias.has_value() && bias->defined() && bias->scalar_type() == at::kBool)
        bias = at::zeros_like(*bias, query.options())
                   .masked_fill(bias->logical_not(), -std::numeric_limits<double>::infinity());
    return at::_scaled_dot_product_attention_math(query, key, value, bias, dropout_p, is_causal, dropout_mask,
                                                  scale, enable_gqa);
}

Tensor by_math(const Tensor& query, const Tensor& key, const Tensor& value,
               const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
               std::optional<double> scale, bool enable_gqa) {
    return std::get<0>(math_with_weights(query, key, value, attn_mask, dropout_p, is_causal, std::nullopt,
                                         scale, enable_gqa));
}

// Whether the fused operator takes the tensors as they are, as far as their symbolic sizes tell.
bool is_of_fused_shape(const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::optional<Tensor>& attn_mask, bool enable_gqa) {
    if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
    const auto q = query.sym_sizes(), k = key.sym_sizes(), v = value.sym_sizes();
    if (!are_same(q[0], k[0]) || !are_same(q[0], v[0]) || !are_same(k[1], v[1])) return false;
    if (!are_same(k[2], v[2]) || !are_same(q[3], k[3])) return false;
    const bool grouped = enable_gqa && !are_same(k[1], 0) && are_same(q[1] % k[1], 0);
    if (!grouped && !are_same(q[1], k[1])) return false;
    if (!attn_mask.has_value() || !attn_mask->defined()) return true;
    const c10::SymInt scores[] = {q[0], q[1], q[2], k[2]};
    const auto mask = attn_mask->sym_sizes();
    return mask.size() <= 4 && std::equal(mask.rbegin(), mask.rend(), std::rbegin(scores),
                                          [](const c10::SymInt& size, const c10::SymInt& full) {
                                              return are_same(size, 1) || are_same(size, full);
                                          });
}

Tensor fused(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
             double dropout_p, bool is_causal, std::optional<double> scale) {
    return std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
        query, key, value, bias, dropout_p, is_causal, false, scale));
}

}  // namespace

Tensor ANYMPS_FUNC(scaled_dot_product_attention)(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 const std::optional<Tensor>& attn_mask, double dropout_p,
                                                 bool is_causal, std::optional<double> scale,
                                                 bool enable_gqa) {
    check_inputs(query, key, value, attn_mask, dropout_p, is_causal);
    if (allowed_backend() == at::SDPBackend::math)
        return by_math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
    if (is_of_fused_shape(query, key, value, attn_mask, enable_gqa))
        return fused(query, key, value, attn_mask, dropout_p, is_causal, scale);
    const bool own_heads = enable_gqa && key.dim() >= 3 && value.dim() >= 3 && key.size(-3) != value.size(-3);
    // Products of other sizes raise PyTorch's own errors there; it repeats the heads of key and value apart.
    if (query.size(-1) != key.size(-1) || key.size(-2) != value.size(-2) || own_heads)
        return by_math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
    const auto leading = [](const Tensor& t) { return t.sizes().slice(0, t.dim() - 2); };
    std::vector<int64_t> batch = at::infer_size(leading(key), leading(value));
    std::vector<int64_t> query_batch = leading(query).vec();
    std::vector<int64_t> key_batch = batch;
    if (enable_gqa && !has_equal_heads(query, key, value)) {
        TORCH_CHECK(query.dim() >= 3 && key.size(-3) > 0 && query.size(-3) % key.size(-3) == 0 &&
                        key.size(-3) == value.size(-3),
                    kHeadsMustDivide, query.sizes(), " and ", key.sizes());
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
    const Tensor out = fused(four_dims(query, query_batch), four_dims(key, key_batch),
                             four_dims(value, key_batch), bias, dropout_p, is_causal, scale);
    auto sizes = query_batch;
    sizes.insert(sizes.end(), {query.size(-2), value.size(-1)});
    return out.view(sizes);
}

// Metal's form of the operator, which programs that were exported on a Mac call: the result and the weights.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_scaled_dot_product_attention_math_for_mps)(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& attn_mask,
    double dropout_p, bool is_causal, const std::optional<Tensor>& dropout_mask, std::optional<double> scale,
    bool enable_gqa) {
    check_inputs(query, key, value, attn_mask, dropout_p, is_causal);
    return math_with_weights(query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, scale,
                             enable_gqa);
}

// A number of at::SDPBackend.
ANYMPS_ROW(_fused_sdp_choice, static_cast<int64_t>(allowed_backend()))

namespace {

// Derivatives of any order and of batches, which the fused operator has no rules for.
bool is_transformed(const Tensor& t) {
    using enum c10::DispatchKey;
    constexpr c10::DispatchKeySet kModes(
        {FuncTorchVmapMode, FuncTorchDynamicLayerFrontMode, FuncTorchDynamicLayerBackMode});
    constexpr c10::DispatchKeySet kWrappers({FuncTorchBatched, FuncTorchGradWrapper});
    return c10::impl::tls_local_dispatch_key_set().included_.has_any(kModes) ||
           t.key_set().has_any(kWrappers) || has_forward_gradient(t);
}

// A subclass may know PyTorch's operators only, as DTensor does; tracers know all.
bool is_subclass(const Tensor& t) {
    using enum c10::impl::TorchDispatchModeKey;
    const auto is_on = [](auto mode) { return c10::impl::TorchDispatchModeTLS::get_mode(mode).has_value(); };
    return t.key_set().has(c10::DispatchKey::Python) && !is_on(FAKE) && !is_on(PROXY) && !is_on(FUNCTIONAL);
}

// In place of PyTorch's own composite, which asks a dispatch stub that asserts where the device is mps.
Tensor composite_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                           const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                           std::optional<double> scale, bool enable_gqa) {
    if (!query.device().is_mps())
        return at::native::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                                        scale, enable_gqa);
    check_inputs(query, key, value, attn_mask, dropout_p, is_causal);
    const auto is_any = [&](bool (*is)(const Tensor&)) { return is(query) || is(key) || is(value); };
    if (allowed_backend() == at::SDPBackend::math || is_any(is_transformed) || is_any(is_subclass) ||
        is_any([](const Tensor& t) { return t.is_nested(); }) ||
        !is_of_fused_shape(query, key, value, attn_mask, enable_gqa))
        return by_math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
    return fused(query, key, value, attn_mask, dropout_p, is_causal, scale);
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    // Differentiable through the fused operator's own derivative.
    m.impl("scaled_dot_product_attention",
           TORCH_FN((DefaultDispatchOr<&scaled_dot_product_attention, &composite_attention>::call)));
}

void replace_composite(torch::Library& m) {
    const QuietReplacement quiet;
    m.impl("scaled_dot_product_attention", TORCH_FN(composite_attention));
}

TORCH_LIBRARY_IMPL(aten, CompositeImplicitAutograd, m) {
    replace_composite(m);
}
TORCH_LIBRARY_IMPL(aten, FuncTorchVmapMode, m) {
    replace_composite(m);
}
TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m) {
    replace_composite(m);
}

}  // namespace

}  // namespace anymps::ops
