// Few queries over many keys: the launches of shaders/attention/attention_decode.slang.
#include <ATen/ops/empty.h>
#include <anymps/shaders/attention/attention_decode.h>

#include <algorithm>
#include <bit>

#include "gemm/tiles.h"
#include "kernels/kernel_lanes.h"
#include "ops/attention/call.h"
#include "runtime/device.h"
#include "runtime/zeroed_words.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::Grid;
using runtime::ZeroedWords;
namespace shader = shaders::attention_decode;
using shader::kThreads;

constexpr int64_t kMaxQueries = 8;
constexpr int64_t kMaxPieces = 4;              // of eight elements that a lane has of a row
constexpr uint64_t kGroupsPerComputeUnit = 4;  // enough loads under way

// As attention_decode.slang has them: queries that share keys, pieces of eight elements that a lane has of a
// row, keys that a team loads at once (fewer in those that come as NAME_lean).
struct DecodeKernel {
    shader::AttentionCallKernel kernel;
    uint64_t rows;
    int64_t pieces;
    uint64_t prefetch;
};
constexpr DecodeKernel kKernels[] = {{shader::attention_decode_4, 4, 1, 4},
                                     {shader::attention_decode_2, 2, 1, 8},
                                     {shader::attention_decode_1, 1, 1, 8},
                                     {shader::attention_decode_pieces_2, 1, 2, 4},
                                     {shader::attention_decode_long, 1, kMaxPieces, 2}};

uint32_t lanes_of(const vulkan::DeviceInfo& device) {
    return kernels::subgroup_of(kKernels[0].kernel.name, device);
}

// Lanes of a row of `size` elements.
uint32_t team(int64_t size, const vulkan::DeviceInfo& device) {
    return std::min(std::bit_ceil(static_cast<uint32_t>(ceil_div(size, 8))), lanes_of(device));
}

int64_t pieces_of_lane(int64_t size, const vulkan::DeviceInfo& device) {
    return ceil_div(size, 8 * team(size, device));
}

// sharing: queries that see the same keys, of all heads of a group.
const DecodeKernel& decode_kernel(int64_t size, uint64_t sharing, const vulkan::DeviceInfo& device) {
    const int64_t pieces = pieces_of_lane(size, device);
    for (const DecodeKernel& each : kKernels) {
        const bool fits = pieces <= each.pieces && sharing > each.rows / 2;
        if (fits && !device.profile->excludes(each.kernel.name)) return each;
    }
    TORCH_INTERNAL_ASSERT(false, "no kernel for rows of ", size);
}

// Counters of the workgroups that have left their part; every dispatch leaves them zero for the next one.
uint64_t arrivals() {
    static const auto& counters = ZeroedWords::leaked(ZeroedWords::kMaxSlots);
    return counters.address();
}

}  // namespace

bool decode_attention_takes(const AttentionProblem& p, const kernels::RouteDevice& t) {
    return gemm::uses_shared_memory(*t.info) && p.queries <= kMaxQueries && !p.dropout && p.strides_fit &&
           pieces_of_lane(p.size, *t.info) <= kMaxPieces && t.info->max_workgroup_size >= kThreads;
}

void decode_attention(const Attention& attention, const Tensor& out, const Tensor& lse) {
    ForwardCall forward(attention, out, lse);
    const Attention& a = forward.a;
    CallArgs& args = forward.args;
    const auto& info = runtime::device().info();
    const int64_t size = problem_of(a).size;
    const int64_t rows = a.z() * a.l();
    const uint64_t keys = a.s(), sharing = a.groups * a.l();
    const DecodeKernel& decode = decode_kernel(size, sharing, info);
    const uint64_t blocks = a.z() / a.groups * ceil_div(sharing, decode.rows);
    // A loop over keys takes as many at once: splits are multiples of that.
    const uint64_t step = kThreads / team(size, info) * decode.prefetch;
    const uint64_t wanted = ceil_div(kGroupsPerComputeUnit * info.compute_units(), blocks);
    args.keys_per_split = static_cast<uint32_t>(ceil_div(ceil_div(keys, wanted), step) * step);
    args.splits = static_cast<uint32_t>(ceil_div(keys, args.keys_per_split));
    const shader::Constants constants{.workgroup = kThreads,
                                      .subgroup = lanes_of(info),
                                      .bias_type = bias_code(a),
                                      .has_bias = a.bias.defined(),
                                      .causal = a.causal,
                                      .wide = forward.wide,
                                      .type = kernels::code(a.query.scalar_type()),
                                      .team = team(size, info)};
    Tensor workspace;
    if (args.splits > 1) {
        workspace =
            at::empty({rows * args.splits * (a.value.size(3) + 2)}, a.query.options().dtype(at::kFloat));
        args.workspace = kernels::address(workspace);
    }
    auto launch = decode.kernel.call(constants);
    launch.read(a.query).read(a.key).read(a.value).read(a.bias);
    launch.write(forward.out).write(lse);
    if (args.splits > 1) {
        // kGroupsPerComputeUnit blocks a compute unit at most have splits.
        TORCH_INTERNAL_ASSERT(blocks * sizeof(uint32_t) <= ZeroedWords::kMaxSlots * ZeroedWords::kSlotBytes);
        args.arrivals = arrivals();
        launch.write(workspace).write(args.arrivals, blocks * sizeof(uint32_t));
    }
    launch.dispatch(args, Grid::linear(blocks * args.splits));
    forward.finish(out);
}

}  // namespace anymps::ops
