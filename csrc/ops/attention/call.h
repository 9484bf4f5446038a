// The arguments of attention kernels.
#pragma once

#include <anymps/shaders/attention/attention_call.h>

#include <initializer_list>

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

// True where rows of these tensors, of elements of `item` bytes, are made of aligned 16-byte vectors.
bool rows_of_words(const CallArgs& args, uint64_t item, std::initializer_list<HeadTensor> tensors);

}  // namespace anymps::ops
