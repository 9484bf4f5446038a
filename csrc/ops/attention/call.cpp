#include "ops/attention/call.h"

#include <ATen/ops/empty_like.h>
#include <anymps/ops/reduction_rows.h>

#include <initializer_list>
#include <limits>

#include "kernels/kernel_call.h"
#include "kernels/reduction_launcher.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {

using at::Tensor;

namespace {

bool fits(const Tensor& t) {
    for (int d = 0; d < 4; ++d)
        if (t.size(d) > 1 && t.stride(d) > std::numeric_limits<uint32_t>::max()) return false;
    return true;
}

}  // namespace

bool strides_fit(const Attention& a) {
    return fits(a.query) && fits(a.key) && fits(a.value) && (!a.bias.defined() || fits(a.bias));
}

HeadTensor strided(const Tensor& t) {
    const auto stride = [&](int64_t d) { return t.size(d) > 1 ? static_cast<uint32_t>(t.stride(d)) : 0u; };
    return {.address = kernels::address(t), .batch = stride(0), .head = stride(1), .row = stride(2)};
}

Tensor with_rows(const Tensor& t) {
    return t.stride(3) == 1 || t.size(3) == 1 ? t : t.contiguous();
}

CallArgs call_args(const Attention& a, const Tensor& lse) {
    const auto u = [](int64_t size) { return static_cast<uint32_t>(size); };
    CallArgs args{};
    args.query = strided(a.query);
    args.key = strided(a.key);
    args.value = strided(a.value);
    args.lse = kernels::address(lse);
    if (a.bias.defined()) {
        args.bias = kernels::address(a.bias);
        uint32_t* strides[] = {&args.bias_batch, &args.bias_head, &args.bias_row, &args.bias_column};
        for (int d = 0; d < 4; ++d) *strides[d] = u(a.bias.stride(d));
    }
    args.random = a.random;
    args.batch = u(a.batch);
    args.heads = u(a.heads);
    args.groups = u(a.groups);
    args.queries = u(a.l());
    args.keys = u(a.s());
    args.size = u(a.query.size(3));
    args.value_size = u(a.value.size(3));
    args.keep_below = a.keep_below();
    args.scale = static_cast<float>(a.scale);
    args.keep_scale = a.keep_scale();
    return args;
}

uint32_t bias_code(const Attention& a) {
    return kernels::code(a.bias.defined() ? a.bias.scalar_type() : at::kFloat);
}

void write_delta(const Tensor& grad, const Tensor& out, const Tensor& delta) {
    kernels::reduce(rows::dot, {grad, out}, kernels::dim_mask(out, 3), {delta});
}

void note_products(const Attention& a, int matrices) {
    const double scores = static_cast<double>(a.z()) * a.l() * a.s();
    runtime::note_dispatch({.operations = (a.causal ? 1.0 : 2.0) * matrices * scores * a.query.size(3)});
}

namespace {

// True where rows of these tensors, of elements of `item` bytes, are made of aligned 16-byte vectors.
bool rows_of_words(const CallArgs& args, uint64_t item, std::initializer_list<HeadTensor> tensors) {
    bool wide = args.size % 8 == 0 && args.value_size % 8 == 0;
    for (const HeadTensor& t : tensors)
        wide = wide && t.address % 16 == 0 && (t.batch | t.head | t.row) * item % 16 == 0;
    return wide;
}

Attention of_rows(const Attention& attention) {
    Attention a = attention;
    a.query = with_rows(a.query);
    a.key = with_rows(a.key);
    a.value = with_rows(a.value);
    return a;
}

void give(const Tensor& from, const Tensor& to) {
    if (!from.is_same(to)) to.copy_(from);
}

}  // namespace

ForwardCall::ForwardCall(const Attention& attention, const Tensor& out_of, const Tensor& lse)
    : a(of_rows(attention)), out(with_rows(out_of)), args(call_args(a, lse)) {
    args.out = strided(out);
    wide = rows_of_words(args, a.query.element_size(), {args.query, args.key, args.value, args.out});
}

void ForwardCall::finish(const Tensor& target) const {
    give(out, target);
}

BackwardCall::BackwardCall(const Attention& attention, const Tensor& grad_of, const Tensor& out_of,
                           const Tensor& lse, const AttentionGradients& targets)
    : a(of_rows(attention)),
      grad(with_rows(grad_of)),
      out(with_rows(out_of)),
      delta(at::empty_like(lse)),
      gradients{with_rows(targets.query), with_rows(targets.key), with_rows(targets.value), targets.bias},
      args(call_args(a, lse)) {
    args.out = strided(out);
    args.grad_out = strided(grad);
    args.grad_query = strided(gradients.query);
    args.grad_key = strided(gradients.key);
    args.grad_value = strided(gradients.value);
    args.delta = kernels::address(delta);
    if (gradients.bias.defined()) args.grad_bias = kernels::address(gradients.bias);
    wide = rows_of_words(args, a.query.element_size(),
                         {args.query, args.key, args.value, args.out, args.grad_out, args.grad_query,
                          args.grad_key, args.grad_value});
}

void BackwardCall::finish(const AttentionGradients& targets) const {
    give(gradients.query, targets.query);
    give(gradients.key, targets.key);
    give(gradients.value, targets.value);
}

}  // namespace anymps::ops
