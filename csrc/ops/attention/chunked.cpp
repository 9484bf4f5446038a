// Attention by products, a fused softmax over score rows, and products; a part of the heads at a time, so
// that the scores of all of them never exist at once. For software drivers, where it is quickest, and what
// flash kernels do not take.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <anymps/shaders/attention/attention.h>
#include <anymps/shaders/attention/attention_keep.h>

#include <algorithm>

#include "gemm/gemm.h"
#include "kernels/flat_grid.h"
#include "kernels/launch_config.h"
#include "ops/attention/call.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

constexpr int64_t kMaxWords = shaders::attention::kMaxWords;  // of a thread
constexpr int64_t kMaxScoreBytes = 256ll << 20;               // of one part of the heads

namespace shader = shaders::attention;

// [batch, kv heads, s, e] -> [batch * heads, s, e].
Tensor merged(const Tensor& t, int64_t groups) {
    if (groups == 1) return t.reshape({t.size(0) * t.size(1), t.size(2), t.size(3)});
    return t.unsqueeze(2)
        .expand({t.size(0), t.size(1), groups, t.size(2), t.size(3)})
        .reshape({t.size(0) * t.size(1) * groups, t.size(2), t.size(3)});
}

// The tensors of a call with batch and heads merged: query [z, l, e], key [z, s, e], value [z, s, v].
struct Merged {
    const Attention& a;
    Tensor query, key, value;

    explicit Merged(const Attention& attention)
        : a(attention),
          query(merged(a.query, 1)),
          key(merged(a.key, a.groups)),
          value(merged(a.value, a.groups)) {}

    int64_t part() const {
        return std::clamp<int64_t>(kMaxScoreBytes / std::max<int64_t>(1, a.l() * a.s() * 4), 1, a.z());
    }
};

void gemm(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& out,
          double alpha) {
    const gemm::Matrices left = transpose_a ? gemm::matrices(a).transposed() : gemm::matrices(a);
    const gemm::Matrices right = transpose_b ? gemm::matrices(b).transposed() : gemm::matrices(b);
    gemm::Gemm{.name = "scaled_dot_product_attention",
               .batch = out.size(0),
               .m = out.size(1),
               .n = out.size(2),
               .k = a.size(transpose_a ? 1 : 2),
               .a = left,
               .b = right,
               .out = gemm::matrices(out),
               .self = gemm::kNoMatrices,
               .alpha = alpha}
        .run();
}

// What dropout keeps of `count` heads from the first on: [count, l, s] bool, or undefined.
Tensor kept(const Attention& a, int64_t first, int64_t count) {
    if (a.dropout == 0.0) return {};
    const Tensor keep = at::empty({count, a.l(), a.s()}, a.query.options().dtype(at::kBool));
    const auto u = [](int64_t size) { return static_cast<uint32_t>(size); };
    const shaders::attention_keep::KeepArgs args{.keep = kernels::address(keep),
                                                 .random = a.random,
                                                 .batch = u(count),
                                                 .rows = u(a.l()),
                                                 .columns = u(a.s()),
                                                 .first_batch = u(first),
                                                 .keep_below = a.keep_below()};
    const uint32_t workgroup = kernels::flat_workgroup();
    shaders::attention_keep::attention_keep.call({.workgroup = workgroup})
        .write(keep)
        .dispatch(args, kernels::flat_grid(static_cast<uint64_t>(a.random_blocks()) / a.z() * count));
    return keep;
}

// How many threads keep a row in registers, by words of four columns; 0 where they do not.
uint32_t lanes_of_words(int64_t columns) {
    const auto& info = runtime::device().info();
    if (info.is_software || columns % 4 != 0) return 0;
    const uint32_t lanes = kernels::power_of_two(columns / 4, std::min(32u, info.subgroup_size));
    return columns / 4 <= int64_t{lanes} * kMaxWords ? lanes : 0;
}

constexpr kernels::KernelFamily kKernels(shader::kernels_with<shader::AttentionArgs>,
                                         {"attention_softmax", "attention_softmax_backward"}, {"", "_words"});

// Runs one of the row kernels over the heads [first, first + scores.size(0)).
void run_rows(bool backward, const Attention& a, int64_t first, const Tensor& scores, const Tensor& grads,
              const Tensor& lse, const Tensor& delta) {
    using kernels::address_or_0;
    const int64_t count = scores.size(0);
    const Tensor keep = kept(a, first, count);
    shader::AttentionArgs args{.scores = address_or_0(scores),
                               .grads = address_or_0(grads),
                               .bias = address_or_0(a.bias),
                               .lse = address_or_0(lse),
                               .delta = address_or_0(delta),
                               .keep = address_or_0(keep)};
    args.batch = static_cast<uint32_t>(count);
    args.rows = static_cast<uint32_t>(a.l());
    args.columns = static_cast<uint32_t>(a.s());
    args.first_batch = static_cast<uint32_t>(first);
    args.heads = static_cast<uint32_t>(a.heads);
    if (a.bias.defined()) {
        uint32_t* strides[] = {&args.bias_batch, &args.bias_head, &args.bias_row, &args.bias_column};
        for (int d = 0; d < 4; ++d) *strides[d] = static_cast<uint32_t>(a.bias.stride(d));
    }
    args.scale = static_cast<float>(a.scale);
    args.keep_scale = a.keep_scale();
    const auto& info = runtime::device().info();
    const uint32_t lanes = lanes_of_words(a.s());
    const uint32_t workgroup = info.is_software ? info.subgroup_size
                               : lanes != 0     ? kernels::launch_config().workgroup
                                                : std::max(info.subgroup_size, 64u);
    const uint32_t words = lanes == 0 ? 0 : static_cast<uint32_t>(kernels::ceil_div(a.s() / 4, lanes));
    auto call = kKernels(backward, lanes != 0)
                    .call({.workgroup = workgroup,
                           .subgroup = info.subgroup_size,
                           .bias_type = bias_code(a),
                           .has_bias = a.bias.defined(),
                           .causal = a.causal,
                           .dropout = keep.defined(),
                           .lanes = lanes,
                           .words = words});
    call.write(scores).read(a.bias).read(keep).read(delta);
    grads.defined() ? call.write(grads).read(lse) : call.write(lse);
    const uint64_t all = static_cast<uint64_t>(count) * args.rows;
    call.dispatch(args, kernels::Grid::linear(lanes == 0 ? all : kernels::ceil_div(all, workgroup / lanes)));
}

Tensor scores_for(const Attention& a, int64_t count) {
    TORCH_CHECK(count * a.l() <= UINT32_MAX,
                "scaled_dot_product_attention: too many query rows for the mps device");
    return at::empty({count, a.l(), a.s()}, a.query.options().dtype(at::kFloat));
}

}  // namespace

void chunked_attention(const Attention& a, const Tensor& out, const Tensor& lse) {
    const Merged m(a);
    const Tensor merged_out =
        out.is_contiguous() ? out.flatten(0, 1) : at::empty({a.z(), a.l(), out.size(3)}, out.options());
    const Tensor merged_lse = lse.flatten(0, 1);
    const int64_t part = m.part();
    const Tensor buffer = scores_for(a, part);
    for (int64_t first = 0; first < a.z(); first += part) {
        const int64_t count = std::min(part, a.z() - first);
        const auto of = [&](const Tensor& t) { return t.narrow(0, first, count); };
        const Tensor scores = buffer.narrow(0, 0, count);
        gemm(of(m.query), false, of(m.key), true, scores, 1.0);
        run_rows(false, a, first, scores, {}, of(merged_lse), {});
        gemm(scores, false, of(m.value), false, of(merged_out), 1.0);
    }
    if (!out.is_contiguous()) out.copy_(merged_out.view(out.sizes()));
}

void chunked_attention_backward(const Attention& a, const Tensor& grad_out, const Tensor& out,
                                const Tensor& logsumexp, const AttentionGradients& gradients) {
    const Merged m(a);
    const Tensor grad = merged(grad_out, 1);
    const Tensor lse = logsumexp.flatten(0, 1);
    const Tensor delta = at::empty({a.batch, a.heads, a.l()}, lse.options());
    write_delta(grad_out, out, delta);
    // Several query heads add up in one key head: in float.
    const auto wide = a.groups > 1 ? m.query.options().dtype(at::kFloat) : m.query.options();
    const auto target = [](const Tensor& gradient, const Tensor& like, const at::TensorOptions& options) {
        const bool itself = gradient.is_contiguous() && gradient.numel() == like.numel();
        return itself ? gradient.flatten(0, 1) : at::empty(like.sizes(), options);
    };
    const Tensor grad_query = target(gradients.query, m.query, m.query.options());
    const Tensor grad_key = target(gradients.key, m.key, wide);
    const Tensor grad_value = target(gradients.value, m.value, wide);
    const bool needs_bias = gradients.bias.defined();
    const int64_t part = m.part();
    const Tensor buffer = scores_for(a, part);
    const Tensor grad_buffer = needs_bias ? gradients.bias.view({a.z(), a.l(), a.s()}) : scores_for(a, part);
    for (int64_t first = 0; first < a.z(); first += part) {
        const int64_t count = std::min(part, a.z() - first);
        const auto of = [&](const Tensor& t) { return t.narrow(0, first, count); };
        const Tensor scores = buffer.narrow(0, 0, count);
        const Tensor grads = needs_bias ? of(grad_buffer) : grad_buffer.narrow(0, 0, count);
        gemm(of(m.query), false, of(m.key), true, scores, 1.0);
        gemm(of(grad), false, of(m.value), true, grads, 1.0);
        run_rows(true, a, first, scores, grads, of(lse), of(delta.flatten(0, 1)));
        gemm(scores, true, of(grad), false, of(grad_value), 1.0);
        gemm(grads, false, of(m.key), false, of(grad_query), a.scale);
        gemm(grads, true, of(m.query), false, of(grad_key), a.scale);
    }
    const auto split = [&](const Tensor& t, const Tensor& like) {
        if (a.groups == 1) return t.view(like.sizes());
        return at::sum(t.view({like.size(0), like.size(1), a.groups, like.size(2), like.size(3)}), 2);
    };
    if (!grad_query.is_alias_of(gradients.query)) gradients.query.copy_(grad_query.view(a.query.sizes()));
    if (!grad_key.is_alias_of(gradients.key)) gradients.key.copy_(split(grad_key, a.key));
    if (!grad_value.is_alias_of(gradients.value)) gradients.value.copy_(split(grad_value, a.value));
}

}  // namespace anymps::ops
