// What the ways to compute attention are given, and the ways.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "gemm/fragment_layout.h"
#include "kernels/route_device.h"
#include "runtime/generator.h"

namespace anymps::ops {

// One call: query [batch, heads, l, e], key [batch, heads / groups, s, e], value [batch, heads / groups, s,
// v], of any strides. bias is undefined, or expanded to [batch, heads, l, s]; bool: true keeps.
struct Attention {
    at::Tensor query, key, value, bias;
    int64_t batch, heads, groups;  // groups: query heads of a key head
    bool causal;                   // key j counts for query i where j <= i
    double scale;
    double dropout;               // probability to drop
    runtime::PhiloxState random;  // what is dropped: shaders/attention/attention_dropout.slang

    int64_t z() const { return batch * heads; }
    int64_t l() const { return query.size(2); }
    int64_t s() const { return key.size(2); }
    // Blocks of Philox that dropout needs.
    int64_t random_blocks() const { return z() * ((l() + 15) / 16) * ((s() + 15) / 16) * 32; }
    // Of 65536 random numbers, those that keep; and the factor of what is kept.
    uint32_t keep_below() const { return static_cast<uint32_t>(std::lround((1.0 - dropout) * 65536.0)); }
    float keep_scale() const { return dropout < 1.0 ? static_cast<float>(1.0 / (1.0 - dropout)) : 0.0f; }
};

// Where the random numbers of a forward pass begin, as it left them: two numbers on the CPU.
runtime::PhiloxState random_of(const at::Tensor& philox_seed, const at::Tensor& philox_offset);

// out [batch, heads, l, v] is written, and lse [batch, heads, l] f32: the logarithm of the sum of
// exponentials of each row, -inf for one without a key. All sizes are above 0.
void chunked_attention(const Attention& a, const at::Tensor& out, const at::Tensor& lse);
void flash_attention(const Attention& a, const at::Tensor& out, const at::Tensor& lse);
void flash_simt_attention(const Attention& a, const at::Tensor& out, const at::Tensor& lse);
void decode_attention(const Attention& a, const at::Tensor& out, const at::Tensor& lse);

// Gradients with the shapes of what they are of, which are written: of query, key and value in their dtypes,
// key's and value's summed over the heads of a group; bias [batch, heads, l, s] f32 may be undefined. grad is
// [batch, heads, l, v]; out and lse are the forward pass's.
struct AttentionGradients {
    at::Tensor query, key, value, bias;
};
void chunked_attention_backward(const Attention& a, const at::Tensor& grad, const at::Tensor& out,
                                const at::Tensor& lse, const AttentionGradients& gradients);
void flash_attention_backward(const Attention& a, const at::Tensor& grad, const at::Tensor& out,
                              const at::Tensor& lse, const AttentionGradients& gradients);
void flash_simt_attention_backward(const Attention& a, const at::Tensor& grad, const at::Tensor& out,
                                   const at::Tensor& lse, const AttentionGradients& gradients);

// What the choice among them depends on, and those that a device would run.
struct AttentionProblem {
    at::ScalarType type;
    int64_t queries, keys, size;  // size: of the longest row of a head
    bool dropout = false, causal = false;
    bool strides_fit = true;                                                 // in 32 bits
    gemm::FragmentLayout (*layout)(at::ScalarType) = gemm::fragment_layout;  // measures at its first call
};
AttentionProblem problem_of(const Attention& a);
std::string to_text(const AttentionProblem& problem);
// decode: up to 8 queries, no dropout.
bool flash_attention_takes(const AttentionProblem& problem, const kernels::RouteDevice& device);
bool flash_simt_attention_takes(const AttentionProblem& problem, const kernels::RouteDevice& device);
bool flash_simt_attention_backward_takes(const AttentionProblem& problem, const kernels::RouteDevice& device);
bool decode_attention_takes(const AttentionProblem& problem, const kernels::RouteDevice& device);
const char* attention_route(const AttentionProblem& problem, const kernels::RouteDevice& device);
const char* attention_backward_route(const AttentionProblem& problem, const kernels::RouteDevice& device);

}  // namespace anymps::ops
