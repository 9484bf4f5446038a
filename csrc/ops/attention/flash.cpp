// Fused attention on matrix units: the tiles, and the launches of shaders/flash_forward.slang and
// flash_backward*.slang.
#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "kernels/kernel_call.h"
#include "kernels/team.h"
#include "ops/attention/call.h"
#include "ops/matmul/tiles.h"
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

struct FlashTile {
    Fragments fragments;
    int64_t size;        // of a head, at most
    int64_t least;       // rows of a head that are worth it
    const char* kernel;  // without the dtype
    uint32_t rows;       // of a workgroup
    uint32_t workgroup;
    uint32_t shared_bytes;
};

// In order of preference, as measured on an H200. Those for software are for tests of whole tiles: llvmpipe
// ends a workgroup with its first subgroup, and one without rows meets fewer barriers. Those for places
// anywhere, which AMD's GPUs take, are reasoned from what AMD's compiler says: 16 keys or queries at a time
// spill no register.
constexpr FlashTile kForward[] = {
    {Fragments::Known, 64, 2048, "flash_forward_64_2x8x32_", 256, 256, 36864},
    {Fragments::Known, 64, 128, "flash_forward_64_2x4x64_", 128, 128, 18432},
    {Fragments::Known, 64, 0, "flash_forward_64_1x4x64_", 64, 128, 18432},
    {Fragments::Known, 128, 0, "flash_forward_128_1x4x32_", 64, 128, 17408},
    {Fragments::Anywhere, 64, 0, "flash_forward_64_strip_", 64, 128, 14336},
    {Fragments::Anywhere, 128, 0, "flash_forward_128_strip_", 64, 128, 31232},
    {Fragments::Software, 32, 0, "flash_forward_32_software_", 32, 16, 7680},
};
constexpr FlashTile kBackwardQuery[] = {
    {Fragments::Known, 64, 128, "flash_backward_query_64_1x8x32_", 128, 256, 18432},
    {Fragments::Known, 64, 0, "flash_backward_query_64_1x4x64_", 64, 128, 18432},
    {Fragments::Known, 128, 0, "flash_backward_query_128_1x4x32_", 64, 128, 17408},
    {Fragments::Anywhere, 64, 0, "flash_backward_query_64_strip_", 64, 128, 32768},
    {Fragments::Anywhere, 128, 0, "flash_backward_query_128_strip_", 64, 128, 48640},
    {Fragments::Software, 32, 0, "flash_backward_query_32_software_", 32, 16, 10240},
};
constexpr FlashTile kBackwardKey[] = {
    {Fragments::Known, 64, 128, "flash_backward_key_64_1x8x32_", 128, 256, 18688},
    {Fragments::Known, 64, 0, "flash_backward_key_64_1x4x32_", 64, 128, 9472},
    {Fragments::Known, 128, 0, "flash_backward_key_128_1x4x16_", 64, 128, 17536},
    {Fragments::Anywhere, 64, 0, "flash_backward_key_64_strip_", 64, 128, 28288},
    {Fragments::Anywhere, 128, 0, "flash_backward_key_128_strip_", 64, 128, 48768},
    {Fragments::Software, 32, 0, "flash_backward_key_32_software_", 32, 16, 10368},
};

// All gradients by one kernel. Heads of 128 were slower by it: too few registers.
constexpr FlashTile kBackward[] = {
    {Fragments::Known, 64, 128, "flash_backward_64_1x8x64_", 128, 256, 37376},
    {Fragments::Software, 32, 0, "flash_backward_32_software_", 32, 16, 11904},
};

Fragments fragments(at::ScalarType type) {
    if (runtime::device().info().is_software) return Fragments::Software;
    return fragment_places(type).known ? Fragments::Known : Fragments::Anywhere;
}

const FlashTile* tile_of(std::span<const FlashTile> tiles, const Attention& a, int64_t rows) {
    const Fragments places = fragments(a.query.scalar_type());
    const int64_t size = std::max(a.query.size(3), a.value.size(3));
    for (const FlashTile& tile : tiles) {
        if (tile.fragments == places && size <= tile.size && rows >= tile.least &&
            tile.shared_bytes <= runtime::device().info().shared_memory_bytes)
            return &tile;
    }
    return nullptr;
}

const char* suffix(const Attention& a) {
    return a.query.scalar_type() == at::kHalf ? "f16" : "bf16";
}

KernelCall call(const FlashTile& tile, const Attention& a, bool wide, bool grad_bias = false) {
    const auto type = a.query.scalar_type();
    const FragmentPlaces places =
        tile.fragments == Fragments::Known ? fragment_places(type) : FragmentPlaces{};
    const uint32_t bias = kernels::code(a.bias.defined() ? a.bias.scalar_type() : at::kFloat);
    const uint32_t specialization[] = {tile.workgroup,
                                       matrix_subgroup(runtime::device().info()),
                                       bias,
                                       a.bias.defined(),
                                       a.causal,
                                       a.dropout > 0.0,
                                       wide,
                                       grad_bias,
                                       places.sums_swapped,
                                       places.left_swapped};
    return {kernels::kernel_id(std::string(tile.kernel) + suffix(a)), specialization};
}

Grid grid_of(const FlashTile& tile, int64_t rows, int64_t heads) {
    return Grid::linear(ceil_div(rows, tile.rows) * heads);
}

// The tile whose kernel computes all gradients, adding those of queries in the order that workgroups come to
// it.
const FlashTile* one_kernel(const Attention& a, const AttentionGradients& gradients) {
    const bool adds = runtime::device().info().float32_atomic_add && !gradients.bias.defined() &&
                      !at::globalContext().deterministicAlgorithms();
    return adds ? tile_of(kBackward, a, a.s()) : nullptr;
}

// Sums of the queries' gradient: fragments of floats, for rows filled up to whole tiles.
Tensor query_sums(const FlashTile& tile, const Attention& a, const Tensor& lse) {
    return at::zeros({a.z(), (a.l() + 63) / 64 * 64, tile.size}, lse.options());
}

}  // namespace

bool flash_attention_takes(const Attention& a) {
    const auto& info = runtime::device().info();
    const auto type = a.query.scalar_type();
    const Arithmetic arithmetic = choose_arithmetic(info, type == at::kHalf, type == at::kBFloat16, false, 3);
    const uint32_t lanes = matrix_subgroup(info);
    if (arithmetic == Arithmetic::Lanes || lanes != (info.is_software ? 8 : 32)) return false;
    return strides_fit(a) && tile_of(kForward, a, a.l()) && tile_of(kBackwardQuery, a, a.l()) &&
           tile_of(kBackwardKey, a, a.s());
}

void flash_attention(const Attention& call_of, const Tensor& out, const Tensor& lse) {
    Attention a = call_of;
    a.query = with_rows(a.query);
    a.key = with_rows(a.key);
    a.value = with_rows(a.value);
    const Tensor rows = with_rows(out);
    CallArgs args = call_args(a, lse);
    args.out = strided(rows);
    const bool wide = rows_of_words(args, 2, {args.query, args.key, args.value, args.out});
    const FlashTile& tile = *tile_of(kForward, a, a.l());
    call(tile, a, wide)
        .read(a.query)
        .read(a.key)
        .read(a.value)
        .read(a.bias)
        .write(rows)
        .write(lse)
        .dispatch_pointer(args, grid_of(tile, a.l(), a.z()));
    if (!rows.is_same(out)) out.copy_(rows);
}

void flash_attention_backward(const Attention& call_of, const Tensor& grad_of_out,
                              const Tensor& out_of_forward, const Tensor& lse,
                              const AttentionGradients& gradients) {
    Attention a = call_of;
    a.query = with_rows(a.query);
    a.key = with_rows(a.key);
    a.value = with_rows(a.value);
    const Tensor grad = with_rows(grad_of_out), out = with_rows(out_of_forward);
    const Tensor grad_query = with_rows(gradients.query), grad_key = with_rows(gradients.key),
                 grad_value = with_rows(gradients.value);
    const Tensor delta = at::empty_like(lse);
    CallArgs args = call_args(a, lse);
    args.out = strided(out);
    args.grad_out = strided(grad);
    args.grad_query = strided(grad_query);
    args.grad_key = strided(grad_key);
    args.grad_value = strided(grad_value);
    args.delta = kernels::address(delta);
    if (gradients.bias.defined()) args.grad_bias = kernels::address(gradients.bias);
    const bool wide = rows_of_words(args, 2,
                                    {args.query, args.key, args.value, args.out, args.grad_out,
                                     args.grad_query, args.grad_key, args.grad_value});
    const auto& info = runtime::device().info();
    const uint32_t workgroup = info.is_software ? info.subgroup_size : 256;
    const std::array<uint32_t, 7> plain{workgroup, info.subgroup_size, kernels::code(at::kFloat), 0, 0, 0,
                                        wide};
    KernelCall(kernels::kernel_id(std::string("flash_delta_") + suffix(a)), plain)
        .read(out)
        .read(grad)
        .write(delta)
        .dispatch_pointer(args, Grid::linear(ceil_div(a.z() * a.l() * 8, workgroup)));
    const auto launch = [&](const FlashTile& tile, bool grad_bias) {
        KernelCall kernel = call(tile, a, wide, grad_bias);
        return kernel.read(a.query).read(a.key).read(a.value).read(a.bias).read(grad).read(lse).read(delta);
    };
    const FlashTile* both = one_kernel(a, gradients);
    const FlashTile& key_tile = both ? *both : *tile_of(kBackwardKey, a, a.s());
    const Tensor sums = both ? query_sums(*both, a, lse) : Tensor();
    if (both) args.workspace = kernels::address(sums);
    launch(key_tile, false)
        .write(grad_key)
        .write(grad_value)
        .write(sums)
        .dispatch_pointer(args, grid_of(key_tile, a.s(), a.z() / a.groups));
    if (both) {
        const std::string name = "flash_backward_finish_" + std::to_string(both->size) + "_" + suffix(a);
        const uint64_t fragments = a.z() * ceil_div(a.l(), 16) * (both->size / 16);
        KernelCall(kernels::kernel_id(name), plain)
            .read(sums)
            .write(grad_query)
            .dispatch_pointer(args, Grid::linear(ceil_div(fragments * matrix_subgroup(info), workgroup)));
    } else {
        const FlashTile& query_tile = *tile_of(kBackwardQuery, a, a.l());
        launch(query_tile, gradients.bias.defined())
            .write(grad_query)
            .write(gradients.bias)
            .dispatch_pointer(args, grid_of(query_tile, a.l(), a.z()));
    }
    const auto give = [](const Tensor& from, const Tensor& to) {
        if (!from.is_same(to)) to.copy_(from);
    };
    give(grad_query, gradients.query);
    give(grad_key, gradients.key);
    give(grad_value, gradients.value);
}

}  // namespace anymps::ops
