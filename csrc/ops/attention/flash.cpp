// Fused attention on matrix units: the tiles, and the launches of shaders/attention/flash_forward.slang and
// flash_backward*.slang.
#include <anymps/shaders/attention/flash_backward.h>
#include <anymps/shaders/attention/flash_backward_key.h>
#include <anymps/shaders/attention/flash_backward_query.h>
#include <anymps/shaders/attention/flash_forward.h>

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string_view>

#include "gemm/fragment_layout.h"
#include "gemm/tiles.h"
#include "kernels/launch_config.h"
#include "ops/attention/call.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::Grid;
using kernels::KernelCall;

// Where fragments may lie: at places that the kernels know, or anywhere (they pass through shared memory), or
// spread over the 8 lanes of a software driver.
enum class Fragments : uint32_t { Known, Anywhere, Software };

namespace shader = shaders::flash_forward;  // whose constants all flash kernels have

// Of the kernels for halves and for bfloat16, which software drivers do not have.
struct Names {
    std::string_view half, bfloat16;
};
consteval Names named(const auto& kernels, std::string_view stem) {
    Names found;
    for (const auto& kernel : kernels) {
        if (!kernel.name.starts_with(stem)) continue;
        if (kernel.name.substr(stem.size()) == "_f16") found.half = kernel.name;
        if (kernel.name.substr(stem.size()) == "_bf16") found.bfloat16 = kernel.name;
    }
    if (found.half.empty()) throw std::invalid_argument("no flash kernel has this name");
    return found;
}
consteval Names forward(std::string_view stem) {
    return named(shaders::flash_forward::kernels_with<CallArgs>, stem);
}
consteval Names query(std::string_view stem) {
    return named(shaders::flash_backward_query::kernels_with<CallArgs>, stem);
}
consteval Names key(std::string_view stem) {
    return named(shaders::flash_backward_key::kernels_with<CallArgs>, stem);
}
consteval Names all(std::string_view stem) {
    return named(shaders::flash_backward::kernels_with<CallArgs>, stem);
}

struct FlashTile {
    Fragments fragments;
    int64_t size;   // of a head, at most
    int64_t least;  // rows of a head that are worth it
    Names kernel;
    uint32_t rows;  // of a workgroup
    uint32_t workgroup;
    uint32_t shared_bytes;
};

// In order of preference, as measured on the first GPU that runs them. Those for software are for tests of
// whole tiles: llvmpipe ends a workgroup with its first subgroup, and one without rows meets fewer barriers.
// Those for places anywhere, which AMD's GPUs take, are reasoned from what AMD's compiler says: 16 keys or
// queries at a time spill no register.
constexpr FlashTile kForward[] = {
    {Fragments::Known, 64, 2048, forward("flash_forward_64_2x8x32"), 256, 256, 36864},
    {Fragments::Known, 64, 128, forward("flash_forward_64_2x4x64"), 128, 128, 18432},
    {Fragments::Known, 64, 0, forward("flash_forward_64_1x4x64"), 64, 128, 18432},
    {Fragments::Known, 128, 0, forward("flash_forward_128_1x4x32"), 64, 128, 17408},
    {Fragments::Anywhere, 64, 0, forward("flash_forward_64_staged"), 64, 128, 14336},
    {Fragments::Anywhere, 128, 0, forward("flash_forward_128_staged"), 64, 128, 31232},
    {Fragments::Software, 32, 0, forward("flash_forward_32_software"), 32, 16, 7680},
};
constexpr FlashTile kBackwardQuery[] = {
    {Fragments::Known, 64, 128, query("flash_backward_query_64_1x8x32"), 128, 256, 18432},
    {Fragments::Known, 64, 0, query("flash_backward_query_64_1x4x64"), 64, 128, 18432},
    {Fragments::Known, 128, 0, query("flash_backward_query_128_1x4x32"), 64, 128, 17408},
    {Fragments::Anywhere, 64, 0, query("flash_backward_query_64_staged"), 64, 128, 32768},
    {Fragments::Anywhere, 128, 0, query("flash_backward_query_128_staged"), 64, 128, 48640},
    {Fragments::Software, 32, 0, query("flash_backward_query_32_software"), 32, 16, 10240},
};
constexpr FlashTile kBackwardKey[] = {
    {Fragments::Known, 64, 128, key("flash_backward_key_64_1x8x32"), 128, 256, 18688},
    {Fragments::Known, 64, 0, key("flash_backward_key_64_1x4x32"), 64, 128, 9472},
    {Fragments::Known, 128, 0, key("flash_backward_key_128_1x4x16"), 64, 128, 17536},
    {Fragments::Anywhere, 64, 0, key("flash_backward_key_64_staged"), 64, 128, 28288},
    {Fragments::Anywhere, 128, 0, key("flash_backward_key_128_staged"), 64, 128, 48768},
    {Fragments::Software, 32, 0, key("flash_backward_key_32_software"), 32, 16, 10368},
};

// All gradients by one kernel. Heads of 128 were slower by it: too few registers.
constexpr FlashTile kBackward[] = {
    {Fragments::Known, 64, 128, all("flash_backward_64_1x8x64"), 128, 256, 37376},
    {Fragments::Software, 32, 0, all("flash_backward_32_software"), 32, 16, 11904},
};

const FlashTile* tile_of(std::span<const FlashTile> tiles, const AttentionProblem& p, int64_t rows,
                         const vulkan::DeviceInfo& device = runtime::device().info()) {
    const Fragments layout = device.is_software       ? Fragments::Software
                             : p.layout(p.type).known ? Fragments::Known
                                                      : Fragments::Anywhere;
    for (const FlashTile& tile : tiles) {
        if (tile.fragments == layout && p.size <= tile.size && rows >= tile.least &&
            tile.shared_bytes <= device.shared_memory_bytes)
            return &tile;
    }
    return nullptr;
}

KernelCall call(const Names& kernel, const Attention& a, const shader::Constants& constants) {
    return {kernels::kernel_id(a.query.scalar_type() == at::kHalf ? kernel.half : kernel.bfloat16),
            constants.values()};
}

KernelCall call(const FlashTile& tile, const Attention& a, bool wide, bool grad_bias = false) {
    const auto type = a.query.scalar_type();
    const gemm::FragmentLayout layout =
        tile.fragments == Fragments::Known ? gemm::fragment_layout(type) : gemm::FragmentLayout{};
    return call(tile.kernel, a,
                {.workgroup = tile.workgroup,
                 .subgroup = gemm::matrix_subgroup(runtime::device().info()),
                 .bias_type = bias_code(a),
                 .has_bias = a.bias.defined(),
                 .causal = a.causal,
                 .dropout = a.dropout > 0.0,
                 .wide = wide,
                 .bias_gradient = grad_bias,
                 .acc_swapped = layout.acc_swapped,
                 .a_swapped = layout.a_swapped});
}

Grid grid_of(const FlashTile& tile, int64_t rows, int64_t heads) {
    return Grid::linear(ceil_div(rows, tile.rows) * heads);
}

// The tile whose kernel computes all gradients, adding those of queries in the order that workgroups come to
// it.
const FlashTile* one_kernel(const Attention& a, const AttentionGradients& gradients) {
    const bool adds = runtime::device().info().float32_atomic_add && !gradients.bias.defined() &&
                      !at::globalContext().deterministicAlgorithms();
    return adds ? tile_of(kBackward, problem_of(a), a.s()) : nullptr;
}

// Sums of the queries' gradient: fragments of floats, for rows filled up to whole tiles.
Tensor query_sums(const FlashTile& tile, const Attention& a, const Tensor& lse) {
    return at::zeros({a.z(), (a.l() + 63) / 64 * 64, tile.size}, lse.options());
}

}  // namespace

bool flash_attention_takes(const AttentionProblem& p, const kernels::RouteDevice& t) {
    const vulkan::DeviceInfo& info = *t.info;
    const gemm::Arithmetic arithmetic =
        gemm::choose_arithmetic(info, p.type == at::kHalf, p.type == at::kBFloat16, false, 3);
    const uint32_t lanes = gemm::matrix_subgroup(info);
    if (arithmetic == gemm::Arithmetic::Simt || lanes != (info.is_software ? 8 : 32)) return false;
    return p.strides_fit && tile_of(kForward, p, p.queries, info) &&
           tile_of(kBackwardQuery, p, p.queries, info) && tile_of(kBackwardKey, p, p.keys, info);
}

void flash_attention(const Attention& attention, const Tensor& out, const Tensor& lse) {
    const ForwardCall forward(attention, out, lse);
    const Attention& a = forward.a;
    const FlashTile& tile = *tile_of(kForward, problem_of(a), a.l());
    note_products(a, 2);
    call(tile, a, forward.wide)
        .read(a.query)
        .read(a.key)
        .read(a.value)
        .read(a.bias)
        .write(forward.out)
        .write(lse)
        .dispatch_pointer(forward.args, grid_of(tile, a.l(), a.z()));
    forward.finish(out);
}

void flash_attention_backward(const Attention& attention, const Tensor& grad, const Tensor& out,
                              const Tensor& lse, const AttentionGradients& gradients) {
    BackwardCall backward(attention, grad, out, lse, gradients);
    const Attention& a = backward.a;
    const bool wide = backward.wide;
    const auto& info = runtime::device().info();
    const uint32_t workgroup = info.is_software ? info.subgroup_size : 256;
    const shader::Constants plain{.workgroup = workgroup, .subgroup = info.subgroup_size, .wide = wide};
    constexpr Names kDelta = query("flash_delta");
    call(kDelta, a, plain)
        .read(backward.out)
        .read(backward.grad)
        .write(backward.delta)
        .dispatch_pointer(backward.args, Grid::linear(ceil_div(a.z() * a.l() * 8, workgroup)));
    const auto launch = [&](const FlashTile& tile, bool grad_bias) {
        KernelCall kernel = call(tile, a, wide, grad_bias);
        kernel.read(a.query).read(a.key).read(a.value).read(a.bias);
        return kernel.read(backward.grad).read(lse).read(backward.delta);
    };
    const FlashTile* both = one_kernel(a, gradients);
    const FlashTile& key_tile = both ? *both : *tile_of(kBackwardKey, problem_of(a), a.s());
    const Tensor sums = both ? query_sums(*both, a, lse) : Tensor();
    if (both) backward.args.workspace = kernels::address(sums);
    note_products(a, both ? 5 : 4);
    launch(key_tile, false)
        .write(backward.gradients.key)
        .write(backward.gradients.value)
        .write(sums)
        .dispatch_pointer(backward.args, grid_of(key_tile, a.s(), a.z() / a.groups));
    if (both) {
        constexpr Names kFinish64 = all("flash_backward_finish_64"),
                        kFinish32 = all("flash_backward_finish_32");
        static_assert(std::size(kBackward) == 2 && kBackward[0].size == 64 && kBackward[1].size == 32);
        const uint64_t fragments = a.z() * ceil_div(a.l(), 16) * (both->size / 16);
        call(both->size == 64 ? kFinish64 : kFinish32, a, plain)
            .read(sums)
            .write(backward.gradients.query)
            .dispatch_pointer(backward.args,
                              Grid::linear(ceil_div(fragments * gemm::matrix_subgroup(info), workgroup)));
    } else {
        const FlashTile& query_tile = *tile_of(kBackwardQuery, problem_of(a), a.l());
        note_products(a, 3);
        launch(query_tile, gradients.bias.defined())
            .write(backward.gradients.query)
            .write(gradients.bias)
            .dispatch_pointer(backward.args, grid_of(query_tile, a.l(), a.z()));
    }
    backward.finish(gradients);
}

}  // namespace anymps::ops
