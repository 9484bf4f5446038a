#include "gemm/gemm_execution.h"

#include <anymps/shaders/gemm/matmul.h>
#include <anymps/shaders/gemm/matmul_fragments.h>
#include <anymps/shaders/gemm/matmul_packed.h>
#include <anymps/shaders/gemm/matmul_scaled.h>

#include <ATen/ops/empty.h>

#include <bit>
#include <optional>
#include <string>

#include "gemm/fragments.h"
#include "gemm/operand_layout.h"
#include "gemm/pack.h"
#include "gemm/scaled_fragments.h"
#include "gemm/scaled_rows.h"
#include "gemm/simt_lanes.h"
#include "gemm/tuning.h"
#include "kernels/flat_grid.h"
#include "kernels/kernel_call.h"
#include "runtime/device.h"
#include "runtime/dispatch_time.h"
#include "runtime/kernel_profile.h"

namespace anymps::gemm {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::Grid;
using kernels::KernelCall;

using shaders::gemm_scheduler::FragmentGemmArgs;
using shaders::gemm_scheduler::GemmArgs;
using shaders::gemm_scheduler::TailSplitArgs;
using shaders::matmul::MatmulArgs;
using shaders::matmul::ReduceSplitKArgs;
using shaders::matmul_packed::MatmulPackedArgs;

uint64_t address_of(const Tensor* tensor) {
    return tensor == nullptr ? 0 : kernels::address(*tensor);
}
uint64_t address_of(const Matrices& matrices) {
    return address_of(matrices.tensor);
}

uint64_t scalar_bits(const at::Scalar& value, Compute compute) {
    if (compute == Compute::F32) return std::bit_cast<uint32_t>(value.to<float>());
    if (compute == Compute::C64) return std::bit_cast<uint64_t>(value.to<c10::complex<float>>());
    return static_cast<uint64_t>(value.to<int64_t>());
}

// How many multiplications of float32 take the time of one: 64-bit integers are put together from 32-bit
// ones.
double cost_of(Compute compute) {
    return compute == Compute::F32 ? 1 : compute == Compute::I64 ? 16 : 4;
}

TailSplitArgs tail_of(const Plan& plan) {
    if (plan.tail_split == 1) return {.full_wave_tiles = UINT32_MAX, .tail_split = 1};
    return {.full_wave_tiles = plan.full_wave_tiles, .tail_split = plan.tail_split};
}

constexpr kernels::KernelFamily kReduceSplitK(shaders::matmul::kernels_with<ReduceSplitKArgs>,
                                              {"matmul_reduce_split_k_"},
                                              {"f32", "i32", "i64", "c64"});  // by Compute

// One execution: what passes leave for later ones.
class Execution {
  public:
    Execution(const Gemm& gemm, Compute compute, const GemmPlan& plan)
        : gemm_(gemm), compute_(compute), plan_(plan), product_(gemm) {
        if (plan.product.swapped) {
            gemm_.transpose();
            product_.transpose();
        }
        if (plan.product.split_k == 1 && !gemm_.sum_batch) return;
        const auto options = gemm_.out.tensor->options().dtype(accumulator_of(compute));
        slices_ = at::empty({plan.product.split_k * gemm_.batch, gemm_.m, gemm_.n}, options);
        product_.out = {&slices_, gemm_.m * gemm_.n, gemm_.n, 1};
        product_.self = kNoMatrices;
        product_.alpha = 1;
        product_.epilogue = {};
    }
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

    void run(GemmPassKind kind) {
        Gemm& g = product_;
        const uint32_t terms = plan_.product.arithmetic == Arithmetic::F16x2 ? 2 : 1;
        switch (kind) {
            case GemmPassKind::CopyA:
                g.a = a_copy_.emplace(g.a, g.batch, g.m, g.k).matrices;
                return;
            case GemmPassKind::CopyB:
                g.b = b_copy_.emplace(g.b.transposed(), g.batch, g.n, g.k).matrices.transposed();
                return;
            case GemmPassKind::PackFragments:
                fragments_.emplace(g.a, g.b.transposed(), g.batch, g.m, g.n, g.k,
                                   vec8_layout(g.a, g.m, g.k, g.batch),
                                   vec8_layout(g.b.transposed(), g.n, g.k, g.batch), plan_.product);
                return;
            case GemmPassKind::PackScaledFragments:
                make_flags();
                scaled_fragments_.emplace(g.a, g.b.transposed(), g.batch, g.m, g.n, g.k, terms, flags_);
                return;
            case GemmPassKind::PackScaledRowsA:
                a_rows_.emplace(g.a, g.batch, g.m, g.k, terms);
                return;
            case GemmPassKind::PackScaledRowsB:
                b_rows_.emplace(g.b.transposed(), g.batch, g.n, g.k, terms);
                make_flags();
                return;
            case GemmPassKind::Gemm:
                if (fragments_) return multiply_fragments();
                if (scaled_fragments_) return multiply_scaled_fragments();
                if (a_rows_) return multiply_scaled_rows();
                return multiply(plan_.product, nullptr);
            case GemmPassKind::FallbackGemm:
                return multiply(plan_.fallback, plan_.flagged);
            case GemmPassKind::ReduceSplitK:
                return reduce_split_k();
        }
    }

  private:
    void make_flags() {
        flags_ =
            at::empty({static_cast<int64_t>(plan_.flag_count)}, product_.a.tensor->options().dtype(at::kInt));
    }

    GemmArgs gemm_args(const Gemm& g, const Plan& plan) const {
        GemmArgs args = gemm::gemm_args(g, compute_);
        args.fallback_flags = kernels::address_or_0(flags_);
        args.k_per_split = plan.k_per_split;
        if (plan.split_k > 1) args.out_z = stride32(g.out.batch, 2);
        return args;
    }

    double operations() const { return 2.0 * product_.batch * product_.m * product_.n * product_.k; }

    void label(const Plan& plan, bool tail) const {
        if (!runtime::profiling()) return;
        const Gemm& g = product_;
        auto sizes = c10::str(g.batch, " of ", g.m, " x ", g.n, " x ", g.k, ", split-K ", plan.split_k);
        if (tail && plan.tail_split > 1) sizes += c10::str(", tail split ", plan.tail_split);
        runtime::profile_work(operations(), profile_label(plan, sizes));
    }

    // One dispatch over all slices of k, on the operands themselves. flagged: only tiles of this size whose
    // flag is set.
    void multiply(const Plan& plan, const Tile* flagged) const {
        const Gemm& g = product_;
        const auto& info = runtime::device().info();
        MatmulArgs args{.gemm = gemm_args(g, plan),
                        .a = address_of(g.a),
                        .b = address_of(g.b),
                        .a_m = stride32(g.a.row, g.m),
                        .a_k = stride32(g.a.column, g.k),
                        .a_z = stride32(g.a.batch, g.batch),
                        .b_n = stride32(g.b.column, g.n),
                        .b_k = stride32(g.b.row, g.k),
                        .b_z = stride32(g.b.batch, g.batch)};
        const bool matrix = plan.arithmetic != Arithmetic::Simt;
        const auto layout = matrix ? vec8_layout : vec4_layout;
        BlockLayout a = layout(g.a, g.m, g.k, g.batch), b = layout(g.b.transposed(), g.n, g.k, g.batch);
        if (is_small(info, g.batch * g.m * g.n * g.k)) a = b = BlockLayout::Strided;
        const Tile& tile = *plan.tile;
        const std::string kernel = std::string("matmul_") + tile.kernel + "_" +
                                   (matrix ? suffix(plan.arithmetic) : kernels::suffix(compute_));
        const shaders::matmul::Constants constants{
            .workgroup = tile.workgroup,
            .subgroup = matrix ? matrix_subgroup(info) : simt_lanes(info),
            .type_a = kernels::code(g.a.tensor->scalar_type()),
            .type_b = kernels::code(g.b.tensor->scalar_type()),
            .type_out = kernels::code(g.out.tensor->scalar_type()),
            .layout_a = static_cast<uint32_t>(a),
            .layout_b = static_cast<uint32_t>(b),
            .has_self = g.self.tensor != nullptr,
            .wide_out = has_vec4_rows(args.gemm, g),
            .tile_m = tile.m,
            .flag_tile_m = flagged == nullptr ? 0 : flagged->m,
            .flag_tile_n = flagged == nullptr ? 0 : flagged->n,
            .epilogue = g.epilogue.steps.code};
        KernelCall call(kernels::kernel_id(kernel), constants.values());
        call.read(*g.a.tensor).read(*g.b.tensor).read(flags_);
        declare_results(call, g);
        label(plan, false);
        // Flagged tiles, rarely any, are shared by the workgroups there are.
        runtime::note_dispatch({.operations = flagged ? 0 : cost_of(compute_) * operations(),
                                .counts_workgroups = flagged != nullptr});
        const uint64_t groups = plan_groups(info, plan, g.batch, g.m, g.n);
        call.dispatch(args, Grid::linear(flagged == nullptr ? groups : groups_of_flagged(info, groups)));
    }

    // One dispatch on packed operands. constants: of the kernels that take these arguments, all but those of
    // every GEMM.
    template <class Constants, class Args>
    void multiply_packed(Constants constants, const Args& args, const Tensor& a, const Tensor& b) const {
        static_assert(sizeof(Args) <= 128);
        const Gemm& g = product_;
        const Plan& plan = plan_.product;
        const auto& info = runtime::device().info();
        constants.workgroup = plan.tile->workgroup;
        constants.subgroup = matrix_subgroup(info);
        constants.type_out = kernels::code(g.out.tensor->scalar_type());
        constants.has_self = g.self.tensor != nullptr;
        constants.wide_out = has_vec4_rows(args.gemm, g);
        constants.epilogue = g.epilogue.steps.code;
        const std::string kernel = std::string("matmul_") + plan.tile->kernel + "_" + suffix(plan.arithmetic);
        KernelCall call(kernels::kernel_id(kernel), constants.values());
        call.read(a).read(b).write(flags_);
        declare_results(call, g);
        label(plan, true);
        runtime::note_dispatch({.operations = operations()});
        call.dispatch(args, Grid::linear(plan_groups(info, plan, g.batch, g.m, g.n)));
    }

    // packed: Fragments or ScaledFragments.
    FragmentGemmArgs fragment_args(const auto& packed) const {
        return {.gemm = gemm_args(product_, plan_.product),
                .a = packed.a.address,
                .b = packed.b.address,
                .steps = packed.steps,
                .a_panels = packed.a.panels_per_batch,
                .b_panels = packed.b.panels_per_batch,
                .tail = tail_of(plan_.product)};
    }

    void multiply_fragments() const {
        const bool swapped = holds_acc_swapped(product_.a.tensor->scalar_type());
        multiply_packed(shaders::matmul_fragments::Constants{.acc_swapped = swapped},
                        fragment_args(*fragments_), fragments_->tensor, {});
    }

    void multiply_scaled_fragments() const {
        multiply_packed(shaders::matmul_scaled::Constants{}, fragment_args(*scaled_fragments_),
                        scaled_fragments_->tensor, {});
    }

    void multiply_scaled_rows() const {
        const MatmulPackedArgs args{.gemm = gemm_args(product_, plan_.product),
                                    .a = a_rows_->address,
                                    .b = b_rows_->address,
                                    .a_pitch = a_rows_->pitch,
                                    .a_norms = a_rows_->words_before_rows,
                                    .a_batch = a_rows_->rows_per_batch,
                                    .b_pitch = b_rows_->pitch,
                                    .b_norms = b_rows_->words_before_rows,
                                    .b_batch = b_rows_->rows_per_batch};
        multiply_packed(shaders::matmul_packed::Constants{}, args, a_rows_->tensor, b_rows_->tensor);
    }

    // out = alpha * (sum of the slices, in order) + beta * self.
    void reduce_split_k() {
        Gemm& g = gemm_;
        if (g.sum_batch) g.batch = 1;
        Plan whole = plan_.product;
        whole.split_k = 1;
        const ReduceSplitKArgs args{.gemm = gemm_args(g, whole),
                                    .workspace = kernels::address(slices_),
                                    .slices = static_cast<uint32_t>(slices_.size(0) / g.batch)};
        const bool wide = g.n % 4 == 0 && has_vec4_rows(args.gemm, g);
        auto call = kReduceSplitK(0, static_cast<size_t>(compute_))
                        .call({.workgroup = kernels::flat_workgroup(),
                               .type_a = kernels::code(slices_.scalar_type()),
                               .type_out = kernels::code(g.out.tensor->scalar_type()),
                               .has_self = g.self.tensor != nullptr,
                               .wide_out = wide,
                               .epilogue = g.epilogue.steps.code});
        call.read(slices_);
        declare_results(call, g);
        const uint64_t results = static_cast<uint64_t>(g.batch) * g.m * g.n;
        if (runtime::profiling())
            runtime::profile_work(0, profile_label(plan_.product, c10::str(results, " results")));
        call.dispatch(args, kernels::flat_grid(wide ? results / 4 : results));
    }

    Gemm gemm_;
    Compute compute_;
    const GemmPlan& plan_;
    Gemm product_;  // operands as the next pass finds them; out is where the pass Gemm writes
    Tensor slices_, flags_;
    std::optional<PackedOperand> a_copy_, b_copy_;
    std::optional<Fragments> fragments_;
    std::optional<ScaledFragments> scaled_fragments_;
    std::optional<ScaledRows> a_rows_, b_rows_;
};

}  // namespace

at::ScalarType accumulator_of(Compute compute) {
    return compute == Compute::F32   ? at::kFloat
           : compute == Compute::C64 ? at::kComplexFloat
           : compute == Compute::I32 ? at::kInt
                                     : at::kLong;
}

GemmArgs gemm_args(const Gemm& g, Compute compute) {
    const auto u = [](int64_t size) { return static_cast<uint32_t>(size); };
    const bool scales = !g.epilogue.steps;
    return {.out = address_of(g.out),
            .self = address_of(g.self),
            .alpha_or_first = scales ? scalar_bits(g.alpha, compute) : address_of(g.epilogue.first),
            .beta_or_operand = scales ? scalar_bits(g.beta, compute) : address_of(g.epilogue.operand),
            .m = u(g.m),
            .n = u(g.n),
            .k = u(g.k),
            .batch = u(g.batch),
            .k_per_split = u(g.k),
            .out_m = stride32(g.out.row, g.m),
            .out_n = stride32(g.out.column, g.n),
            .out_z = stride32(g.out.batch, g.batch),
            .self_m = stride32(g.self.row, g.m),
            .self_n = stride32(g.self.column, g.n),
            .self_z = stride32(g.self.batch, g.batch)};
}

bool has_vec4_rows(const GemmArgs& args, const Gemm& g) {
    const uint64_t item = g.out.tensor->element_size();
    const auto aligned = [&](uint64_t address) {
        return aligned4(address, item, args.n, args.out_m, args.out_z);
    };
    return args.out_n == 1 && aligned(args.out) && aligned(address_of(g.epilogue.operand));
}

void declare_results(KernelCall& call, const Gemm& g) {
    call.write(*g.out.tensor);
    if (g.self.tensor != nullptr) call.read(*g.self.tensor);
    if (g.epilogue.operand != nullptr) call.read(*g.epilogue.operand);
    if (g.epilogue.first != nullptr) call.write(*g.epilogue.first);
}

void execute(const Gemm& g, Compute compute, const GemmPlan& plan) {
    Execution execution(g, compute, plan);
    for (const GemmPass& pass : plan.passes()) execution.run(pass.kind);
}

}  // namespace anymps::gemm
