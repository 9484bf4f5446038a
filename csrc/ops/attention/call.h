// The arguments of attention kernels.
#pragma once

#include <initializer_list>

#include "ops/attention/attention.h"

namespace anymps::ops {

// Twins of HeadTensor and AttentionCall in shaders/lib/attention_call.slang.
struct HeadTensor {
    uint64_t address;
    uint32_t batch, head, row, unused;
};
struct CallArgs {
    HeadTensor query, key, value, out;
    HeadTensor grad_out, grad_query, grad_key, grad_value;
    uint64_t lse, delta, bias, grad_bias;
    runtime::PhiloxState random;
    uint32_t bias_batch, bias_head, bias_row, bias_column;
    uint32_t batch, heads, groups;
    uint32_t queries, keys, size, value_size;
    uint32_t keep_below;
    float scale, keep_scale;
    uint32_t parts, part;
    uint64_t workspace;
};

// Whether all strides have 32 bits.
bool strides_fit(const Attention& a);

HeadTensor strided(const at::Tensor& t);

// The tensor, or a copy of it, with rows whose elements follow one another.
at::Tensor with_rows(const at::Tensor& t);

// Of the tensors that a call has: out, the gradients, delta and the workspace are left 0.
CallArgs call_args(const Attention& a, const at::Tensor& lse);

// True where rows of these tensors, of elements of `item` bytes, are made of aligned words of 16 bytes.
bool rows_of_words(const CallArgs& args, uint64_t item, std::initializer_list<HeadTensor> tensors);

}  // namespace anymps::ops
