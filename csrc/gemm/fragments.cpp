#include "gemm/fragments.h"

#include <anymps/shaders/gemm/matmul_fragments.h>

#include <ATen/ops/empty.h>

#include "gemm/fragment_layout.h"
#include "gemm/gemm_plan.h"
#include "gemm/tuning.h"
#include "kernels/dtype.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::gemm {
namespace {

using kernels::ceil_div;

namespace shader = shaders::matmul_fragments;
using shader::FragmentArgs;

int64_t groups_of(const FragmentArgs& args) {
    return int64_t{args.matrices} * args.panels * args.steps;
}

constexpr int64_t kPanel = PackedFragments::kPanel;
constexpr uint32_t kWarps = 8;
constexpr double kMaxElements = 1 << 29;  // that get a copy, of a gigabyte then
constexpr double kMinProducts = 1 << 30;

// All but where they go.
FragmentArgs arguments(const Matrices& operand, int64_t batch, int64_t rows, int64_t k) {
    const int64_t copies = operand.batch == 0 ? 1 : batch;
    FragmentArgs args{};
    args.from = kernels::address(*operand.tensor);
    args.rows = static_cast<uint32_t>(rows);
    args.k = static_cast<uint32_t>(k);
    args.row_stride = kernel_stride(operand.row, rows);
    args.k_stride = kernel_stride(operand.column, k);
    args.z_stride = kernel_stride(operand.batch, copies);
    args.panels = static_cast<uint32_t>(ceil_div(rows, kPanel));
    args.steps = static_cast<uint32_t>(ceil_div(k, kPanel));
    args.matrices = static_cast<uint32_t>(copies);
    return args;
}

PackedFragments packed(const FragmentArgs& args, uint64_t panel) {
    return packed_fragments(args.matrices, args.rows, args.k, panel);
}

Fragments::Operand operand_at(const FragmentArgs& args, uint64_t panel) {
    return {args.to, args.matrices == 1 ? 0 : static_cast<uint32_t>(packed(args, panel).panels)};
}

}  // namespace

bool holds_fragments(at::ScalarType type) {
    const auto& info = runtime::device().info();
    if (!info.cooperative_matrix || !uses_shared_memory(info)) return false;
    if (type == at::kBFloat16 && !info.cooperative_matrix_bfloat16) return false;
    if (info.is_software) return type == at::kHalf && info.subgroup_size == 8;
    return lanes_hold_operands(type);
}

bool can_use_fragments(at::ScalarType type, double batch, double m, double n, double k) {
    if (k < 1 || batch * (m + n) * k > kMaxElements) return false;
    if (!runtime::device().info().is_software && batch * m * n * k < kMinProducts) return false;
    if (type != at::kHalf && type != at::kBFloat16) return false;
    return holds_fragments(type);
}

bool holds_acc_swapped(at::ScalarType type) {
    return !runtime::device().info().is_software && fragment_layout(type).acc_swapped;
}

Fragments::Fragments(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n, int64_t k,
                     BlockLayout a_layout, BlockLayout b_layout, const Plan& plan) {
    shader::MatmulFragmentsPackArgs args{.a = arguments(a, batch, m, k), .b = arguments(b, batch, n, k)};
    const PackedFragments a_size = packed(args.a, kPanel), b_size = packed(args.b, plan.tile->panel);
    const auto size = static_cast<int64_t>(a_size.size + b_size.size + PackedFragments::kRead);
    tensor = at::empty({size}, a.tensor->options());
    args.a.to = kernels::address(tensor);
    args.b.to = args.a.to + a_size.size * a.tensor->element_size();
    this->a = operand_at(args.a, kPanel);
    this->b = operand_at(args.b, plan.tile->panel);
    steps = static_cast<uint32_t>(a_size.steps);

    const auto& info = runtime::device().info();
    const uint32_t lanes = matrix_subgroup(info);
    const auto type = a.tensor->scalar_type();
    const auto& kernel = info.is_software    ? shader::matmul_fragments_pack_software_f16
                         : type == at::kHalf ? shader::matmul_fragments_pack_f16
                                             : shader::matmul_fragments_pack_bf16;
    if (runtime::profiling()) {
        const auto sizes =
            c10::str(args.a.matrices, " of ", m, " x ", k, ", ", args.b.matrices, " of ", n, " x ", k);
        runtime::profile_work(0, profile_label(plan, sizes));
    }
    kernel
        .call({.workgroup = kWarps * lanes,
               .subgroup = lanes,
               .type = kernels::code(type),
               .panel_b = plan.tile->panel,
               .layout_a = static_cast<uint32_t>(a_layout),
               .layout_b = static_cast<uint32_t>(b_layout)})
        .read(*a.tensor)
        .read(*b.tensor)
        .write(tensor)
        .dispatch(args, kernels::Grid::linear(groups_of(args.a) + groups_of(args.b)));
}

}  // namespace anymps::gemm
