#include "ops/matmul/gemm.h"

#include <anymps/shaders/matmul.h>
#include <anymps/shaders/matmul_fragments.h>
#include <anymps/shaders/matmul_packed.h>
#include <anymps/shaders/matmul_scaled.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kernels/flat_grid.h"
#include "kernels/kernel_call.h"
#include "ops/matmul/block_layout.h"
#include "ops/matmul/fragments.h"
#include "ops/matmul/pack.h"
#include "ops/matmul/scaled_fragments.h"
#include "ops/matmul/scaled_rows.h"
#include "ops/matmul/tiles.h"
#include "ops/matmul/tuning.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"
#include "runtime/plan_log.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::Grid;
using kernels::KernelCall;

using shaders::matmul::MatmulArgs;

uint32_t stride32(int64_t stride, int64_t size) {
    if (size <= 1) return 0;
    TORCH_CHECK(stride <= std::numeric_limits<uint32_t>::max(), "matrix product: a stride of ", stride,
                " elements is too large for the mps device");
    return static_cast<uint32_t>(stride);
}

uint64_t address_of(const Matrices& matrices) {
    return matrices.tensor == nullptr ? 0 : kernels::address(*matrices.tensor);
}

// True where elements load as aligned vec4.
bool aligned4(uint64_t address, uint64_t item, uint32_t size, uint32_t other_stride, uint32_t batch_stride) {
    return size % 4 == 0 && other_stride % 4 == 0 && batch_stride % 4 == 0 &&
           address % std::min<uint64_t>(16, 4 * item) == 0;
}

// True where rows store as vec4.
bool has_vec4_rows(const MatmulArgs& args, uint64_t item) {
    return args.out_n == 1 && aligned4(args.out, item, args.n, args.out_m, args.out_z);
}

BlockLayout layout_of(uint64_t address, uint64_t item, uint32_t rows, uint32_t k, uint32_t row_stride,
                      uint32_t k_stride, uint32_t batch_stride, bool) {
    if (k_stride == 1) {
        return aligned4(address, item, k, row_stride, batch_stride) ? BlockLayout::KMajorVec
                                                                    : BlockLayout::KMajor;
    }
    const bool wide = row_stride == 1 && aligned4(address, item, rows, k_stride, batch_stride);
    return wide ? BlockLayout::MnMajorVec : BlockLayout::Strided;
}

// Layout for the tiles of matrix units: vec8, aligned to 16 bytes where they are wide.
BlockLayout vec8_layout_of(uint64_t address, uint64_t item, uint32_t rows, uint32_t k, uint32_t row_stride,
                           uint32_t k_stride, uint32_t batch_stride, bool padded) {
    const auto wide = [&](uint32_t size, uint32_t other_stride) {
        return (padded || size % 8 == 0) && other_stride * item % 16 == 0 && batch_stride * item % 16 == 0 &&
               address % 16 == 0;
    };
    if (k_stride == 1) return wide(k, row_stride) ? BlockLayout::KMajorVec : BlockLayout::KMajorUnaligned;
    if (row_stride == 1)
        return wide(rows, k_stride) ? BlockLayout::MnMajorVec : BlockLayout::MnMajorUnaligned;
    return BlockLayout::Strided;
}

// True where columns of b load as vec4.
bool follows_along_n(const Gemm& g) {
    const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
    return layout_of(address_of(g.b), g.b.tensor->element_size(), u(g.n), u(g.k), stride32(g.b.column, g.n),
                     stride32(g.b.row, g.k), stride32(g.b.batch, g.batch), false) == BlockLayout::MnMajorVec;
}

// bf16 terms that torch.set_float32_matmul_precision asks for.
uint32_t bf16_terms_of_f32() {
    switch (at::globalContext().float32MatmulPrecision()) {
        case at::Float32MatmulPrecision::MEDIUM:
            return 1;
        case at::Float32MatmulPrecision::HIGH:
            return 2;
        default:
            return 3;
    }
}

Arithmetic arithmetic_of(const Gemm& g) {
    const auto type = g.a.tensor->scalar_type();
    if (type != g.b.tensor->scalar_type()) return Arithmetic::Simt;
    // Of small f32 products a tile of matrix units would be padding for the most part, and these add with
    // truncation: powers of a matrix have it many times over.
    constexpr int64_t kSmallSide = 32, kShortSum = 16;
    if (type == at::kFloat && std::max(g.m, g.n) <= kSmallSide && g.k <= kShortSum) return Arithmetic::Simt;
    return choose_arithmetic(runtime::device().info(), type == at::kHalf, type == at::kBFloat16,
                             type == at::kFloat, type == at::kFloat ? bf16_terms_of_f32() : 3);
}

// Bits of the contiguous sides of the operands, and of beta * self.
uint64_t variant_of(const Gemm& g) {
    const bool bits[] = {
        g.a.row == 1,      g.a.column == 1,         g.b.row == 1, g.b.column == 1, g.out.row == 1,
        g.out.column == 1, g.self.tensor != nullptr};
    uint64_t variant = 0;
    for (const bool bit : bits) variant = 2 * variant + bit;
    return variant;
}

uint64_t scalar_bits(const at::Scalar& value, Compute compute) {
    if (compute == Compute::F32) return std::bit_cast<uint32_t>(value.to<float>());
    if (compute == Compute::C64) return std::bit_cast<uint64_t>(value.to<c10::complex<float>>());
    return static_cast<uint64_t>(value.to<int64_t>());
}

MatmulArgs arguments(const Gemm& g, Compute compute) {
    const auto u = [](int64_t size) { return static_cast<uint32_t>(size); };
    MatmulArgs args{};
    args.a = address_of(g.a);
    args.b = address_of(g.b);
    args.out = address_of(g.out);
    args.self = address_of(g.self);
    args.alpha = scalar_bits(g.alpha, compute);
    args.beta = scalar_bits(g.beta, compute);
    args.m = u(g.m);
    args.n = u(g.n);
    args.k = u(g.k);
    args.batch = u(g.batch);
    args.a_m = stride32(g.a.row, g.m);
    args.a_k = stride32(g.a.column, g.k);
    args.a_z = stride32(g.a.batch, g.batch);
    args.b_n = stride32(g.b.column, g.n);
    args.b_k = stride32(g.b.row, g.k);
    args.b_z = stride32(g.b.batch, g.batch);
    args.out_m = stride32(g.out.row, g.m);
    args.out_n = stride32(g.out.column, g.n);
    args.out_z = stride32(g.out.batch, g.batch);
    args.self_m = stride32(g.self.row, g.m);
    args.self_n = stride32(g.self.column, g.n);
    args.self_z = stride32(g.self.batch, g.batch);
    return args;
}

// True where an operand of so many rows of k loads as 16-byte vectors, along k or along the rows.
bool is_vec8(const Matrices& factor, int64_t rows, int64_t k, int64_t batch) {
    const auto u = [](int64_t number) { return static_cast<uint32_t>(number); };
    const BlockLayout layout = vec8_layout_of(address_of(factor), factor.tensor->element_size(), u(rows),
                                              u(k), stride32(factor.row, rows), stride32(factor.column, k),
                                              stride32(factor.batch, batch), false);
    return layout == BlockLayout::KMajorVec || layout == BlockLayout::MnMajorVec;
}

// Requirements of the pipelined tiles. Their offsets are 32 bits for up to 192 rows, or 64 k.
bool has_vectors(const Gemm& g) {
    constexpr int64_t kBlock = 64, kLongStride = 1 << 23;
    const int64_t longest = std::max({g.a.row, g.a.column, g.b.row, g.b.column});
    return g.k > 0 && g.k % kBlock == 0 && longest < kLongStride && is_vec8(g.a, g.m, g.k, g.batch) &&
           is_vec8(g.b.transposed(), g.n, g.k, g.batch);
}

void transpose(Gemm& g) {
    std::swap(g.m, g.n);
    const Matrices a = g.a;
    g.a = g.b.transposed();
    g.b = a.transposed();
    g.out = g.out.transposed();
    g.self = g.self.transposed();
}

// One dispatch over all slices of k; out's batch is split_k * batch long. fallback_flags: only flagged tiles,
// whose size is that of `flagged`.
void multiply(const Gemm& g, const Plan& plan, Compute compute, const Tensor& fallback_flags = {},
              const Tile* flagged = nullptr) {
    MatmulArgs args = arguments(g, compute);
    args.k_per_split = plan.k_per_split;
    if (plan.split_k > 1) args.out_z = stride32(g.out.batch, 2);
    const uint64_t a_item = g.a.tensor->element_size(), b_item = g.b.tensor->element_size();
    const uint64_t out_item = g.out.tensor->element_size();
    const bool matrix = plan.arithmetic != Arithmetic::Simt;
    const auto layout = matrix ? vec8_layout_of : layout_of;
    BlockLayout a = layout(args.a, a_item, args.m, args.k, args.a_m, args.a_k, args.a_z, g.a.padded);
    BlockLayout b = layout(args.b, b_item, args.n, args.k, args.b_n, args.b_k, args.b_z, g.b.padded);
    const bool wide_out = has_vec4_rows(args, out_item);
    const auto& info = runtime::device().info();
    if (is_small(info, g.batch * g.m * g.n * g.k)) a = b = BlockLayout::Strided;
    const Tile& tile = *plan.tile;
    const std::string kernel = std::string("matmul_") + tile.kernel + "_" +
                               (matrix ? suffix(plan.arithmetic) : kernels::suffix(compute));
    const shaders::matmul::Constants constants{
        .workgroup = tile.workgroup,
        .subgroup = matrix ? matrix_subgroup(info) : info.subgroup_size,
        .type_a = kernels::code(g.a.tensor->scalar_type()),
        .type_b = kernels::code(g.b.tensor->scalar_type()),
        .type_out = kernels::code(g.out.tensor->scalar_type()),
        .layout_a = static_cast<uint32_t>(a),
        .layout_b = static_cast<uint32_t>(b),
        .has_self = g.self.tensor != nullptr,
        .wide_out = wide_out,
        .tile_m = tile.m,
        .flag_tile_m = flagged == nullptr ? 0 : flagged->m,
        .flag_tile_n = flagged == nullptr ? 0 : flagged->n};
    if (fallback_flags.defined()) args.fallback_flags = kernels::address(fallback_flags);
    KernelCall call(kernels::kernel_id(kernel), constants.values());
    call.read(*g.a.tensor).read(*g.b.tensor).read(fallback_flags).write(*g.out.tensor);
    if (g.self.tensor != nullptr) call.read(*g.self.tensor);
    if (runtime::profiling()) {
        const auto sizes = c10::str(g.batch, " of ", g.m, " x ", g.n, " x ", g.k, ", split-K ", plan.split_k);
        runtime::profile_work(2.0 * g.batch * g.m * g.n * g.k, profile_label(plan, sizes));
    }
    const uint64_t groups = plan_groups(info, plan, g.batch, g.m, g.n);
    call.dispatch(args, Grid::linear(flagged == nullptr ? groups : groups_of_flagged(info, groups)));
}

// One dispatch on packed operands, at which args point.
void multiply_copies(const Gemm& g, const Plan& plan, MatmulArgs args, const Tensor& a, const Tensor& b,
                     const Tensor& fallback_flags) {
    args.k_per_split = plan.k_per_split;
    if (plan.split_k > 1) args.out_z = stride32(g.out.batch, 2);
    if (fallback_flags.defined()) args.fallback_flags = kernels::address(fallback_flags);
    const auto& info = runtime::device().info();
    const uint32_t type = kernels::code(g.out.tensor->scalar_type());
    const bool wide_out = has_vec4_rows(args, g.out.tensor->element_size());
    const std::string kernel = std::string("matmul_") + plan.tile->kernel + "_" + suffix(plan.arithmetic);
    const bool swapped = plan.tile->fragments && !is_scaled_f16(plan.arithmetic) &&
                         holds_acc_swapped(g.a.tensor->scalar_type());
    const auto prepared = [&]<class Constants>(Constants constants) {
        constants.workgroup = plan.tile->workgroup;
        constants.subgroup = matrix_subgroup(info);
        constants.type_out = type;
        constants.has_self = g.self.tensor != nullptr;
        constants.wide_out = wide_out;
        return KernelCall(kernels::kernel_id(kernel), constants.values());
    };
    KernelCall call = !plan.tile->fragments ? prepared(shaders::matmul_packed::Constants{})
                      : is_scaled_f16(plan.arithmetic)
                          ? prepared(shaders::matmul_scaled::Constants{})
                          : prepared(shaders::matmul_fragments::Constants{.acc_swapped = swapped});
    call.read(a).read(b).write(*g.out.tensor).write(fallback_flags);
    if (g.self.tensor != nullptr) call.read(*g.self.tensor);
    if (runtime::profiling()) {
        auto sizes = c10::str(g.batch, " of ", g.m, " x ", g.n, " x ", g.k, ", split-K ", plan.split_k);
        if (plan.tail_split > 1) sizes += c10::str(", tail split ", plan.tail_split);
        runtime::profile_work(2.0 * g.batch * g.m * g.n * g.k, profile_label(plan, sizes));
    }
    call.dispatch(args, Grid::linear(plan_groups(info, plan, g.batch, g.m, g.n)));
}

// Tail split of kernels on fragments.
void set_pieces(MatmulArgs& args, const Plan& plan) {
    args.a_k = plan.tail_split == 1 ? UINT32_MAX : plan.full_wave_tiles;
    args.b_k = plan.tail_split;
}

// The product on scaled f16, then the flagged tiles on the operands themselves.
void multiply_scaled(const Gemm& g, const Plan& plan, Compute compute) {
    const uint32_t terms = plan.arithmetic == Arithmetic::F16x2 ? 2 : 1;
    const auto& info = runtime::device().info();
    const Plan other = fallback_plan(info, plan, bf16_terms_of_f32());
    // One flag for the larger tile of both.
    const auto results = [](const Tile& tile) { return tile.m * tile.n; };
    Plan flagged = other;
    if (results(*plan.tile) > results(*other.tile)) flagged.tile = plan.tile;
    const Tensor fallback_flags =
        at::empty({static_cast<int64_t>(plan_groups(info, flagged, g.batch, g.m, g.n))},
                  g.a.tensor->options().dtype(at::kInt));
    MatmulArgs args = arguments(g, compute);
    if (plan.tile->fragments) {
        const ScaledFragments cut(g.a, g.b.transposed(), g.batch, g.m, g.n, g.k, terms, fallback_flags);
        args.a = cut.a.address;
        args.b = cut.b.address;
        args.a_m = args.b_n = cut.steps;
        args.a_z = cut.a.panels_per_batch;
        args.b_z = cut.b.panels_per_batch;
        set_pieces(args, plan);
        multiply_copies(g, plan, args, cut.tensor, {}, fallback_flags);
    } else {
        const ScaledRows a(g.a, g.batch, g.m, g.k, terms), b(g.b.transposed(), g.batch, g.n, g.k, terms);
        args.a = a.address;
        args.a_m = a.pitch;
        args.a_k = a.words_before_rows;
        args.a_z = a.rows_per_batch;
        args.b = b.address;
        args.b_n = b.pitch;
        args.b_k = b.words_before_rows;
        args.b_z = b.rows_per_batch;
        multiply_copies(g, plan, args, a.tensor, b.tensor, fallback_flags);
    }
    multiply(g, other, compute, fallback_flags, flagged.tile);
}

// The product on fragment-packed operands.
void multiply_fragments(const Gemm& g, const Plan& plan, Compute compute) {
    MatmulArgs args = arguments(g, compute);
    const auto layout = [](const Matrices& f, uint64_t address, uint32_t rows, uint32_t k,
                           uint32_t row_stride, uint32_t k_stride, uint32_t z) {
        return static_cast<uint32_t>(
            vec8_layout_of(address, f.tensor->element_size(), rows, k, row_stride, k_stride, z, f.padded));
    };
    const Fragments packed(g.a, g.b.transposed(), g.batch, g.m, g.n, g.k,
                           layout(g.a, args.a, args.m, args.k, args.a_m, args.a_k, args.a_z),
                           layout(g.b, args.b, args.n, args.k, args.b_n, args.b_k, args.b_z), plan);
    args.a = packed.a.address;
    args.a_m = packed.a.steps;
    args.a_z = packed.a.panels_per_batch;
    args.b = packed.b.address;
    args.b_n = packed.b.steps;
    args.b_z = packed.b.panels_per_batch;
    set_pieces(args, plan);
    multiply_copies(g, plan, args, packed.tensor, {}, {});
}

constexpr kernels::KernelFamily kSum(shaders::matmul::kernels_with<MatmulArgs>, {"matmul_reduce_split_k_"},
                                     {"f32", "i32", "i64", "c64"});  // by Compute

// out = alpha * (sum of the slices, in order) + beta * self.
void reduce_split_k(const Gemm& g, const Tensor& workspace, const Plan& plan, Compute compute) {
    MatmulArgs args = arguments(g, compute);
    args.a = kernels::address(workspace);
    args.k = static_cast<uint32_t>(workspace.size(0) / g.batch);
    const uint32_t type = kernels::code(g.out.tensor->scalar_type());
    const uint32_t workgroup = kernels::flat_workgroup();
    const bool wide = g.n % 4 == 0 && has_vec4_rows(args, g.out.tensor->element_size());
    auto call = kSum(0, static_cast<size_t>(compute))
                    .call({.workgroup = workgroup,
                           .type_a = kernels::code(workspace.scalar_type()),
                           .type_out = type,
                           .has_self = g.self.tensor != nullptr,
                           .wide_out = wide});
    call.read(workspace).write(*g.out.tensor);
    if (g.self.tensor != nullptr) call.read(*g.self.tensor);
    const uint64_t results = static_cast<uint64_t>(g.batch) * g.m * g.n;
    if (runtime::profiling()) runtime::profile_work(0, profile_label(plan, c10::str(results, " results")));
    call.dispatch(args, kernels::flat_grid(wide ? results / 4 : results));
}

// True where the product runs on an aligned copy of this operand.
bool worth_a_copy(const Matrices& factor, int64_t rows, int64_t others, const Gemm& g, const Plan& plan) {
    if (plan.arithmetic != Arithmetic::F16 && plan.arithmetic != Arithmetic::BF16) return false;
    if (plan.tile->fragments) return false;
    const double products = static_cast<double>(g.batch) * g.m * g.n * g.k;
    return worth_packing(others, products) && !is_vec8(factor, rows, g.k, g.batch);
}

// Not in place: the fallback would read self after it was overwritten.
bool can_use_scaled_f16(const Gemm& g, const GemmProblem& p) {
    const bool floats = g.a.tensor->scalar_type() == at::kFloat && g.b.tensor->scalar_type() == at::kFloat;
    const bool in_place = g.self.tensor != nullptr && g.self.tensor->is_alias_of(*g.out.tensor);
    return p.floating && floats && !in_place && std::min(p.m, p.n) >= 16 &&
           multiplies_scaled_f16(runtime::device().info()) && worth_scaled_f16(g.batch, g.m, g.n, g.k);
}

}  // namespace

Matrices matrices(const Tensor& tensor) {
    if (tensor.dim() == 2) return {&tensor, 0, tensor.stride(0), tensor.stride(1)};
    return {&tensor, tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

void Gemm::run() {
    const auto type = out.tensor->scalar_type();
    const Compute compute = kernels::compute_of(type);
    const bool known = compute == Compute::F32 || compute == Compute::C64 || type == at::kInt ||
                       type == at::kLong || type == at::kShort || type == at::kChar || type == at::kByte;
    TORCH_CHECK_NOT_IMPLEMENTED(known, "\"", name, "\" not implemented for '", c10::toString(type), "'");
    if ((batch == 0 && !sum_batch) || m == 0 || n == 0) return;
    Gemm g = *this;
    if (g.batch == 0) {  // a sum of no products is one product of no terms
        g.batch = 1;
        g.k = 0;
        g.sum_batch = false;
    }
    if (self.tensor != nullptr && beta.equal(0.0)) g.self = kNoMatrices;
    // Results that follow one another along a column are the rows of the transposed product.
    if (g.out.column != 1 && g.out.row == 1 && g.m > 1) transpose(g);
    const auto& info = runtime::device().info();
    if (g.n == 1 && g.m > 1 && g.a.row == 1) transpose(g);  // a matrix and a vector
    GemmProblem problem;
    problem.batch = g.batch;
    problem.m = g.m;
    problem.n = g.n;
    problem.k = g.k;
    problem.floating = compute == Compute::F32;
    if (problem.floating) problem.arithmetic = arithmetic_of(g);
    problem.may_swap = !uses_shared_memory(info);
    // With one k there is nothing to follow: such factors may be read four rows at a time, which that kernel
    // cannot.
    problem.k_contiguous = g.k > 1 && g.a.column == 1 && g.b.row == 1;
    problem.n_contiguous = uses_shared_memory(info) && follows_along_n(g);
    if (can_use_scaled_f16(g, problem)) {
        problem.arithmetic = bf16_terms_of_f32() == 3 ? Arithmetic::F16x2 : Arithmetic::F16x1;
        problem.may_pack = holds_fragments(at::kHalf);
    }
    if (problem.arithmetic == Arithmetic::F16 || problem.arithmetic == Arithmetic::BF16) {
        problem.may_pack = can_use_fragments(g.a.tensor->scalar_type(), g.batch, g.m, g.n, g.k);
        problem.vectorizable = has_vectors(g);
    }
    problem.variant = variant_of(g);
    const Plan plan = choose_plan(info, problem);
    if (runtime::logs_plans()) [[unlikely]]
        runtime::log_plan(name, to_text(problem, plan));
    if (plan.swapped) transpose(g);
    std::optional<PackedFactor> a_packed, b_packed;
    if (worth_a_copy(g.a, g.m, g.n, g, plan)) g.a = a_packed.emplace(g.a, g.batch, g.m, g.k).matrices;
    if (worth_a_copy(g.b.transposed(), g.n, g.m, g, plan)) {
        b_packed.emplace(g.b.transposed(), g.batch, g.n, g.k);
        g.b = b_packed->matrices.transposed();
    }
    const auto product = [](const Gemm& gemm, const Plan& p, Compute c) {
        if (is_scaled_f16(p.arithmetic)) return multiply_scaled(gemm, p, c);
        if (p.tile->fragments) return multiply_fragments(gemm, p, c);
        multiply(gemm, p, c);
    };
    if (plan.split_k == 1 && !g.sum_batch) return product(g, plan, compute);
    const auto accumulator = compute == Compute::F32   ? at::kFloat
                             : compute == Compute::C64 ? at::kComplexFloat
                             : compute == Compute::I32 ? at::kInt
                                                       : at::kLong;
    const auto options = out.tensor->options().dtype(accumulator);
    const Tensor workspace = at::empty({plan.split_k * g.batch, g.m, g.n}, options);
    Gemm partial = g;
    partial.out = {&workspace, g.m * g.n, g.n, 1};
    partial.self = kNoMatrices;
    partial.alpha = 1;
    product(partial, plan, compute);
    if (g.sum_batch) g.batch = 1;
    reduce_split_k(g, workspace, plan, compute);
}

}  // namespace anymps::ops
