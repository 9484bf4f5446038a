#include "gemm/scaled_rows.h"

#include <anymps/shaders/gemm/matmul_pack.h>
#include <anymps/shaders/gemm/split_f16.h>
#include <anymps/shaders/lib/reduce.h>

#include <ATen/ops/empty.h>

#include <algorithm>

#include "gemm/gemm_plan.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::gemm {
namespace {

using kernels::ceil_div;

namespace shader = shaders::matmul_pack;

constexpr uint32_t kThreads = shaders::reduce::kMaxWorkgroup, kPrefetch = shader::kPrefetch;
// Tile of a workgroup where rows do not follow k.
constexpr uint32_t kRows = shaders::split_f16::kRows,
                   kDeep = shaders::split_f16::kDeep * shaders::split_f16::kTiles;
}  // namespace

bool follows_k(const Matrices& operand) {
    return operand.column == 1;
}

bool is_vectorizable(const Matrices& operand, int64_t rows, int64_t k) {
    const bool along = follows_k(operand);
    const auto step = along ? operand.row : operand.column, length = along ? k : rows;
    return (along || operand.row == 1) && length % 4 == 0 && step % 4 == 0 && operand.batch % 4 == 0 &&
           kernels::address(*operand.tensor) % 16 == 0;
}

ScaledRows::ScaledRows(const Matrices& operand, int64_t batch, int64_t rows, int64_t k, uint32_t terms) {
    const int64_t copies = operand.batch == 0 ? 1 : batch;
    const bool along = follows_k(operand);
    const PackedRows size = packed_rows(copies, rows, k, terms, along);
    const auto vec8s = static_cast<uint32_t>(size.vec8s);
    const auto chunks_per_row = static_cast<uint32_t>(size.chunks_per_row);
    tensor = at::empty({static_cast<int64_t>(size.size)}, operand.tensor->options());
    address = kernels::address(tensor) + size.norms * 4;
    words_before_rows = static_cast<uint32_t>(size.norms / 4);
    pitch = vec8s * terms;
    rows_per_batch = copies == 1 ? 0 : static_cast<uint32_t>(rows);

    shader::MatmulPackArgs args{};
    args.to = address;
    args.norms = kernels::address(tensor);
    args.from = kernels::address(*operand.tensor);
    args.chunk_amax = address + size.packed * 4;
    args.from_batch = operand.batch;
    args.from_row = operand.row;
    args.from_k = operand.column;
    args.rows = kernels::FastDivider(static_cast<uint32_t>(rows));
    args.count = static_cast<uint32_t>(copies * rows);
    args.k = static_cast<uint32_t>(k);
    args.vec8s = vec8s;
    args.k_of_chunk = size.k_of_chunk;
    args.chunks_per_row = chunks_per_row;
    const bool words = is_vectorizable(operand, rows, k);
    if (runtime::profiling())
        runtime::profile_work(0, c10::str(copies, " of ", rows, " x ", k, along ? "" : ", across"));
    const uint32_t subgroup = kernels::launch_config().subgroup;
    if (along) {
        // Threads that keep eight words each: a part of a subgroup, or all of a workgroup.
        const uint32_t lanes = kernels::power_of_two(ceil_div(vec8s * 2, kPrefetch), kThreads);
        const uint32_t few = std::min(32u, subgroup),
                       threads = lanes <= few ? kThreads : std::max(lanes, subgroup);
        const uint32_t a_row = lanes <= few ? few : std::max(lanes, subgroup);
        shader::matmul_pack
            .call({.workgroup = threads,
                   .subgroup = subgroup,
                   .both = terms == 2,
                   .words = words,
                   .lanes = a_row,
                   .once = vec8s * 2 <= kPrefetch * a_row})
            .read(*operand.tensor)
            .write(tensor)
            .dispatch(args, kernels::Grid::linear(ceil_div(args.count, threads / a_row)));
        return;
    }
    const shader::Constants constants{
        .workgroup = kThreads, .subgroup = subgroup, .both = terms == 2, .words = words};
    const uint64_t blocks = copies * ceil_div(rows, kRows);
    args.groups = kernels::group_count(blocks * chunks_per_row);
    shader::matmul_pack_norms.call(constants)
        .read(*operand.tensor)
        .write(tensor)
        .dispatch(args, kernels::Grid::linear(args.groups));
    args.groups = kernels::group_count(blocks * ceil_div(vec8s * 8, kDeep));
    shader::matmul_pack_across.call(constants)
        .read(*operand.tensor)
        .write(tensor)
        .dispatch(args, kernels::Grid::linear(args.groups));
}

}  // namespace anymps::gemm
