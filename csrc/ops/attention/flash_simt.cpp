// Fused attention in f32 arithmetic by lanes: where it is taken, and the launches of
// shaders/attention/flash_simt_forward.slang and flash_simt_backward.slang.
#include <anymps/shaders/attention/flash_simt.h>
#include <anymps/shaders/attention/flash_simt_backward.h>
#include <anymps/shaders/attention/flash_simt_forward.h>

#include <string_view>

#include "gemm/tiles.h"
#include "kernels/kernel_lanes.h"
#include "kernels/launch_config.h"
#include "ops/attention/call.h"
#include "runtime/device.h"
#include "vulkan/device_profile.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::Grid;
using shaders::flash_simt::kRows;
using shaders::flash_simt::kSharedBytes;
using shaders::flash_simt::kTileThreads;
namespace fwd = shaders::flash_simt_forward;
namespace bwd = shaders::flash_simt_backward;

constexpr int64_t kSmallSize = 64, kLargestSize = 128;  // of a head
constexpr uint32_t kOfValues = bwd::kValueGradient, kOfKeys = bwd::kKeyGradient,
                   kOfBoth = kOfValues | kOfKeys;

bool fits(const AttentionProblem& p, const kernels::RouteDevice& t) {
    return gemm::uses_shared_memory(*t.info) && p.size <= kLargestSize && p.strides_fit &&
           t.info->max_workgroup_size >= kTileThreads && t.info->shared_memory_bytes >= kSharedBytes;
}

// Whether chunks may pay: matrix units compute their products, and scores go to memory of the GPU's own.
bool has_fast_chunks(const AttentionProblem& p, const kernels::RouteDevice& t) {
    const auto arithmetic = gemm::choose_arithmetic(*t.info, p.type == at::kHalf, p.type == at::kBFloat16,
                                                    p.type == at::kFloat, 3);
    return arithmetic != gemm::Arithmetic::Simt && !t.info->is_integrated;
}

template <class Constants>
Constants constants_of(const Attention& a, std::string_view kernel, bool wide) {
    return {.subgroup = kernels::launch_config_of(kernel).subgroup,
            .bias_type = bias_code(a),
            .has_bias = a.bias.defined(),
            .causal = a.causal,
            .dropout = a.dropout > 0.0,
            .wide = wide,
            .type = kernels::code(a.query.scalar_type())};
}

template <class Kernel, class Constants>
auto prepared(const Kernel& kernel, const Attention& a, const Constants& constants) {
    auto call = kernel.call(constants);
    call.read(a.query).read(a.key).read(a.value).read(a.bias);
    return call;
}

bool is_small(const Attention& a) {
    return problem_of(a).size <= kSmallSize;
}

Grid tiles(int64_t rows, int64_t heads) {
    return Grid::linear(ceil_div(rows, kRows) * heads);
}

}  // namespace

// Chunks move scores through memory, but multiply fewer matrices in the backward pass: where they are fast
// they are the quicker way for long heads, and backward where nothing is hidden (docs/journal/attention.md).
bool flash_simt_attention_takes(const AttentionProblem& p, const kernels::RouteDevice& t) {
    return fits(p, t) && (p.size <= kSmallSize || p.causal || !has_fast_chunks(p, t));
}

bool flash_simt_attention_backward_takes(const AttentionProblem& p, const kernels::RouteDevice& t) {
    return fits(p, t) && ((p.size <= kSmallSize && p.causal) || !has_fast_chunks(p, t));
}

void flash_simt_attention(const Attention& attention, const Tensor& out, const Tensor& lse) {
    const ForwardCall forward(attention, out, lse);
    const Attention& a = forward.a;
    note_products(a, 2);
    const auto& kernel = is_small(a) ? fwd::flash_simt_forward_64 : fwd::flash_simt_forward_128;
    prepared(kernel, a, constants_of<fwd::Constants>(a, kernel.name, forward.wide))
        .write(forward.out)
        .write(lse)
        .dispatch(forward.args, tiles(a.l(), a.z()));
    forward.finish(out);
}

void flash_simt_attention_backward(const Attention& attention, const Tensor& grad, const Tensor& out,
                                   const Tensor& lse, const AttentionGradients& gradients) {
    const BackwardCall backward(attention, grad, out, lse, gradients);
    const Attention& a = backward.a;
    write_delta(backward.grad, backward.out, backward.delta);
    const auto launch = [&](const auto& kernel, uint32_t of, bool bias_gradient) {
        auto constants = constants_of<bwd::Constants>(a, kernel.name, backward.wide);
        constants.gradients = of;
        constants.bias_gradient = bias_gradient;
        auto call = prepared(kernel, a, constants);
        call.read(backward.grad).read(lse).read(backward.delta);
        return call;
    };
    const auto launch_key_gradient = [&](uint32_t of) {
        note_products(a, of == kOfBoth ? 4 : of == kOfKeys ? 3 : 2);
        const auto& kernel = is_small(a) ? bwd::flash_simt_key_gradient_64 : bwd::flash_simt_key_gradient_128;
        auto call = launch(kernel, of, false);
        if (of & kOfKeys) call.write(backward.gradients.key);
        if (of & kOfValues) call.write(backward.gradients.value);
        call.dispatch(backward.args, tiles(a.s(), a.z() / a.groups));
    };
    // Results of both kinds and tiles of scores are more than threads of few registers have.
    if (!is_small(a) && runtime::device_info().profile->lean()) {
        launch_key_gradient(kOfValues);
        launch_key_gradient(kOfKeys);
    } else {
        launch_key_gradient(kOfBoth);
    }
    note_products(a, 3);
    launch(is_small(a) ? bwd::flash_simt_query_gradient_64 : bwd::flash_simt_query_gradient_128, kOfBoth,
           gradients.bias.defined())
        .write(backward.gradients.query)
        .write(gradients.bias)
        .dispatch(backward.args, tiles(a.l(), a.z()));
    backward.finish(gradients);
}

}  // namespace anymps::ops
