#include "gemm/scaled_fragments.h"

#include <anymps/shaders/gemm/matmul_scaled_pack.h>

#include <ATen/ops/empty.h>

#include "gemm/fragment_layout.h"
#include "gemm/gemm_plan.h"
#include "gemm/scaled_rows.h"
#include "gemm/tiles.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::gemm {
namespace {

using kernels::ceil_div;

// As in shaders/gemm/matmul_scaled_pack.slang.
constexpr int64_t kPanel = PackedScaledFragments::kPanel;
constexpr int64_t kRowsAlong = 16, kRowsLargest = 32, kDeep = 128;  // of a workgroup
constexpr uint32_t kSubgroups = 8;

namespace shader = shaders::matmul_scaled_pack;
using shader::ScaledPackArgs;
using shaders::scaled_pack::ScaledOperand;

// How much of rows that follow k the threads of a workgroup keep in registers.
struct Held {
    shader::ScaledPackKernel kernel;
    uint32_t subgroups, steps;  // of 16 k
};
constexpr Held kShort{shader::matmul_scaled_pack, 8, 8 * 6},
    kLong{shader::matmul_scaled_pack_long, 16, 16 * 12};
constexpr Held kSoftware{shader::matmul_scaled_pack_software, 8,
                         4 * 6 / 2};  // vec8 of 8 k, four threads a row

ScaledOperand operand_of(const Matrices& operand, int64_t batch, int64_t rows, int64_t k) {
    return {.from = kernels::address(*operand.tensor),
            .batch_stride = operand.batch,
            .row_stride = kernel_stride(operand.row, rows),
            .k_stride = kernel_stride(operand.column, k),
            .rows = static_cast<uint32_t>(rows),
            .matrices = static_cast<uint32_t>(operand.batch == 0 ? 1 : batch)};
}

PackedScaledFragments packed(const ScaledOperand& f, int64_t k, uint32_t terms) {
    return packed_scaled_fragments(f.matrices, f.rows, k, terms);
}

}  // namespace

ScaledFragments::ScaledFragments(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n,
                                 int64_t k, uint32_t terms, const at::Tensor& fallback_flags) {
    ScaledPackArgs args{};
    args.a = operand_of(a, batch, m, k);
    args.b = operand_of(b, batch, n, k);
    args.fallback_flags = kernels::address(fallback_flags);
    args.flag_count = static_cast<uint32_t>(fallback_flags.numel());
    args.k = static_cast<uint32_t>(k);
    const PackedScaledFragments a_size = packed(args.a, k, terms), b_size = packed(args.b, k, terms);
    args.steps = static_cast<uint32_t>(a_size.steps);
    args.k_of_chunk = a_size.k_of_chunk;
    args.chunks_per_row = static_cast<uint32_t>(a_size.chunks_per_row);
    tensor = at::empty({static_cast<int64_t>(a_size.size + b_size.size)}, a.tensor->options());
    args.a.to = kernels::address(tensor) + a_size.norms * 4;
    args.b.to = kernels::address(tensor) + (a_size.size + b_size.norms) * 4;
    const auto position = [](const ScaledOperand& f) {
        return Operand{f.to, f.matrices == 1 ? 0 : static_cast<uint32_t>(ceil_div(f.rows, kPanel))};
    };
    this->a = position(args.a);
    this->b = position(args.b);
    steps = args.steps * terms;

    const bool software = runtime::device().info().is_software;
    const uint32_t lanes = matrix_subgroup(runtime::device().info());
    const bool along_a = follows_k(a), along_b = follows_k(b);
    const FragmentLayout layout = software ? FragmentLayout{} : fragment_layout(at::kHalf);
    // More threads with more registers for longer rows. Beside another operand, whose rows do not follow k,
    // they are slower: only where they spare a reading.
    const bool both = along_a && along_b, any = along_a || along_b;
    const bool longer = any && args.steps > kShort.steps && (both || args.steps <= kLong.steps);
    const Held held = software ? kSoftware : longer ? kLong : kShort;
    const bool words = is_vectorizable(a, m, k) && is_vectorizable(b, n, k);
    const auto run = [&](const shader::ScaledPackKernel& kernel, uint32_t subgroups, int64_t groups) {
        if (groups == 0) return;
        if (runtime::profiling()) {
            const auto shape = [&](const ScaledOperand& f, bool along) {
                return c10::str(f.matrices, " of ", f.rows, " x ", k, along ? "" : ", across");
            };
            runtime::profile_work(0, shape(args.a, along_a) + "; " + shape(args.b, along_b));
        }
        kernel
            .call({.workgroup = subgroups * lanes,
                   .subgroup = lanes,
                   .both = terms == 2,
                   .words = words,
                   .once = args.steps <= held.steps,
                   .along_a = along_a,
                   .along_b = along_b,
                   .a_swapped = layout.a_swapped,
                   .b_swapped = layout.b_swapped})
            .read(*a.tensor)
            .read(*b.tensor)
            .write(tensor)
            .write(fallback_flags)
            .dispatch(args, kernels::Grid::linear(groups));
    };
    const auto first = [&](const ScaledOperand& f, bool along) -> int64_t {
        return f.matrices *
               (along ? ceil_div(f.rows, kRowsAlong) : ceil_div(f.rows, kRowsLargest) * args.chunks_per_row);
    };
    const auto second = [&](const ScaledOperand& f, bool along) -> int64_t {
        const int64_t rows = software ? kRowsLargest : kPanel;
        return along ? 0 : f.matrices * ceil_div(f.rows, rows) * ceil_div(16 * int64_t{args.steps}, kDeep);
    };
    run(held.kernel, held.subgroups, first(args.a, along_a) + first(args.b, along_b));
    run(software ? shader::matmul_scaled_pack_strided_software : shader::matmul_scaled_pack_strided,
        kSubgroups, second(args.a, along_a) + second(args.b, along_b));
}

}  // namespace anymps::gemm
