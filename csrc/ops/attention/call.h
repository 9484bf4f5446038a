// The arguments of attention kernels.
#pragma once

#include <anymps/shaders/attention/attention_call.h>

#include "ops/attention/attention.h"

namespace anymps::ops {

using shaders::attention_call::HeadTensor;
using CallArgs = shaders::attention_call::AttentionCall;

// Whether all strides have 32 bits.
bool strides_fit(const Attention& a);

// The address and the strides, in elements, of t [batch, heads, rows, columns], whose columns follow one
// another.
HeadTensor strided(const at::Tensor& t);

// The tensor, or a copy of it, with rows whose elements follow one another.
at::Tensor with_rows(const at::Tensor& t);

// Of the tensors that a call has: out, the gradients, delta and the workspace are left 0.
CallArgs call_args(const Attention& a, const at::Tensor& lse);

// The code of the bias's dtype for kernels; that of f32 without one.
uint32_t bias_code(const Attention& a);

// delta [batch, heads, l] f32: the sum of grad * out [batch, heads, l, v] of each row, of any strides.
void write_delta(const at::Tensor& grad, const at::Tensor& out, const at::Tensor& delta);

// Of the next dispatch, which multiplies each tile of scores by as many matrices of a head.
void note_products(const Attention& a, int matrices);

// A forward pass as fused kernels take it: tensors with_rows, the arguments, and whether the rows of all are
// made of aligned 16-byte vectors.
struct ForwardCall {
    Attention a;
    at::Tensor out;
    CallArgs args;
    bool wide;

    ForwardCall(const Attention& attention, const at::Tensor& out, const at::Tensor& lse);
    // Copies what was computed apart.
    void finish(const at::Tensor& target) const;
};

// A backward pass likewise; delta [batch, heads, l] f32 is yet to be computed.
struct BackwardCall {
    Attention a;
    at::Tensor grad, out, delta;
    AttentionGradients gradients;
    CallArgs args;
    bool wide;

    BackwardCall(const Attention& attention, const at::Tensor& grad, const at::Tensor& out,
                 const at::Tensor& lse, const AttentionGradients& gradients);
    void finish(const AttentionGradients& targets) const;
};

}  // namespace anymps::ops
