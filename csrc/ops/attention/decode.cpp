// Few queries over many keys: the launches of shaders/attention/attention_decode.slang.
#include <ATen/ops/empty.h>
#include <anymps/shaders/attention/attention_decode.h>

#include <algorithm>
#include <bit>

#include "gemm/tiles.h"
#include "kernels/launch_config.h"
#include "ops/attention/call.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::ceil_div;
using kernels::Grid;
namespace shader = shaders::attention_decode;

constexpr int64_t kMaxQueries = 8;
constexpr int64_t kMaxPieces = 4;              // of eight elements that a lane has of a row
constexpr uint64_t kShortestPart = 256;        // keys
constexpr uint64_t kGroupsPerComputeUnit = 8;  // enough loads under way
using shader::kThreads;

// Lanes of a row of `size` elements.
uint32_t team(int64_t size, const vulkan::DeviceInfo& device) {
    return std::min(std::bit_ceil(static_cast<uint32_t>(ceil_div(size, 8))), device.subgroup_size);
}

int64_t pieces_of_lane(int64_t size, const vulkan::DeviceInfo& device) {
    return ceil_div(size, 8 * team(size, device));
}

}  // namespace

bool decode_attention_takes(const AttentionProblem& p, const kernels::RouteDevice& t) {
    return gemm::uses_shared_memory(*t.info) && p.queries <= kMaxQueries && !p.dropout && p.strides_fit &&
           pieces_of_lane(p.size, *t.info) <= kMaxPieces && t.info->max_workgroup_size >= kThreads;
}

void decode_attention(const Attention& call, const Tensor& out, const Tensor& lse) {
    Attention a = call;
    a.query = with_rows(a.query);
    a.key = with_rows(a.key);
    a.value = with_rows(a.value);
    CallArgs args = call_args(a, lse);
    const Tensor result = with_rows(out);
    args.out = strided(result);
    const uint64_t rows = a.z() * a.l(), keys = a.s();
    const auto& info = runtime::device().info();
    const uint64_t enough = kGroupsPerComputeUnit * info.compute_units();
    const uint64_t wanted = std::min(ceil_div(enough, rows), keys / kShortestPart);
    args.part = static_cast<uint32_t>(ceil_div(keys, std::max<uint64_t>(1, wanted)));
    args.parts = static_cast<uint32_t>(ceil_div(keys, args.part));
    const auto type = a.query.scalar_type();
    const int64_t size = problem_of(a).size;
    const bool wide = rows_of_words(args, a.query.element_size(), {args.query, args.key, args.value});
    const uint32_t bias = kernels::code(a.bias.defined() ? a.bias.scalar_type() : at::kFloat);
    const shader::Constants constants{.workgroup = kThreads,
                                      .subgroup = info.subgroup_size,
                                      .bias_type = bias,
                                      .has_bias = a.bias.defined(),
                                      .causal = a.causal,
                                      .wide = wide,
                                      .type = kernels::code(type),
                                      .team = team(size, info)};
    Tensor workspace;
    if (args.parts > 1) {
        workspace = at::empty({static_cast<int64_t>(rows * args.parts * (a.value.size(3) + 2))},
                              a.query.options().dtype(at::kFloat));
        args.workspace = kernels::address(workspace);
    }
    auto decode = (pieces_of_lane(size, info) == 1 ? shader::attention_decode_1 : shader::attention_decode_4)
                      .call(constants);
    decode.read(a.query).read(a.key).read(a.value).read(a.bias);
    if (args.parts > 1)
        decode.write(workspace);
    else
        decode.write(result).write(lse);
    decode.dispatch(args, Grid::linear(rows * args.parts));
    if (args.parts > 1) {
        shader::attention_join.call(constants).read(workspace).write(result).write(lse).dispatch(
            args, Grid::linear(ceil_div(rows * args.value_size, kThreads)));
    }
    if (!result.is_same(out)) out.copy_(result);
}

}  // namespace anymps::ops
