#include "ops/conv/implicit_gemm.h"

#include <anymps/shaders/conv.h>
#include <anymps/shaders/conv_nosmem.h>
#include <anymps/shaders/lib/product.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "ops/attention/attention.h"
#include "ops/conv/variant.h"
#include "ops/matmul/tiles.h"
#include "ops/matmul/tuning.h"
#include "runtime/device.h"
#include "runtime/dispatch_time.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::FastDivider;
using kernels::Grid;
using kernels::KernelCall;

using shaders::conv::ConvArgs;
using shaders::lib::conv_operand::CoordinateSizes;
using shaders::lib::conv_operand::Im2colArgs;
using CoordinateStrideArgs = shaders::lib::conv_operand::CoordinateStrides;

constexpr uint32_t kBf16x2 = shaders::lib::product::kBf16x2;

constexpr size_t kMaxPhases = 128;  // of one dispatch, in the argument ring

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(),
                "convolution: a size or stride of ", value, " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

// The sizes of the fast digits; the slowest is what is left.
CoordinateSizes sizes_of(const Coordinates& coordinates, uint32_t spatial) {
    CoordinateSizes result;
    result.sizes.fill(FastDivider());
    uint32_t next = 0;
    if (coordinates.channels_last) result.sizes[next++] = FastDivider(narrow(coordinates.n_or_c));
    for (uint32_t s = 0; s < spatial && next < 3; ++s)
        result.sizes[next++] = FastDivider(narrow(coordinates.spatial[2 - s]));
    return result;
}

// Strides of digits of size 1 are never used, and may be anything.
CoordinateStrideArgs strides_of(const Coordinates& coordinates, const CoordinateStrides& strides) {
    CoordinateStrideArgs result{};
    for (int axis = 0; axis < 3; ++axis) {
        result.values[axis] =
            coordinates.spatial[axis] > 1 ? static_cast<uint64_t>(strides.spatial[axis]) : 0;
    }
    result.values[3] = coordinates.n_or_c > 1 ? static_cast<uint64_t>(strides.n_or_c) : 0;
    return result;
}

Im2colArgs im2col_args(const ImplicitGemm& c, const Variant& variant) {
    const Im2colOperand& b = c.im2col;
    Im2colArgs args{};
    args.base = kernels::address(*b.tensor);
    args.z_stride = static_cast<uint64_t>(b.group_stride);
    args.row_nc_stride = c.g.n_or_c > 1 ? static_cast<uint64_t>(b.row_nc_stride) : 0;
    args.k_nc_stride = c.k.n_or_c > 1 ? static_cast<uint64_t>(b.k_nc_stride) : 0;
    args.rows = narrow(c.g.count());
    for (int axis = 0; axis < 3; ++axis) {
        args.row_step[axis] = static_cast<int32_t>(b.row_step[axis]);
        args.k_step[axis] = static_cast<int32_t>(b.k_step[axis]);
        args.start[axis] = static_cast<int32_t>(b.start[axis]);
        args.size[axis] = narrow(b.size[axis]);
        args.stride[axis] = b.size[axis] > 1 ? narrow(b.stride[axis]) : 0;
    }
    if (variant.mode == IteratorMode::Linear) args.flat_stride = narrow(im2col_run(c).stride);
    args.taps = narrow(c.k.positions());
    return args;
}

ConvArgs arguments(const ImplicitGemm& c, const Variant& variant) {
    ConvArgs args{};
    const StridedOperand& a = c.strided;
    args.strided.base = kernels::address(*a.tensor) + a.offset * a.tensor->element_size();
    args.strided.z_stride = static_cast<uint64_t>(a.group_stride);
    args.strided.row_stride = a.rows > 1 ? static_cast<uint64_t>(a.row_stride) : 0;
    args.strided.k_strides = strides_of(c.k, a.k);
    args.strided.flat_stride = variant.flat_k ? narrow(run_of(c.k, a.k).stride) : 0;
    args.strided.rows = narrow(a.rows);
    args.im2col = im2col_args(c, variant);
    args.row_coordinates = sizes_of(c.g, variant.spatial);
    args.k_coordinates = sizes_of(c.k, variant.spatial);
    const ConvTarget& t = c.target;
    args.out = kernels::address(*t.tensor) + t.offset * t.tensor->element_size();
    args.out_z = static_cast<uint64_t>(t.group_stride);
    args.out_f = static_cast<uint64_t>(t.row_stride);
    args.out_g = strides_of(c.g, t.g);
    if (t.bias != nullptr) {
        args.bias = kernels::address(*t.bias);
        args.bias_stride = narrow(t.bias->stride(0));
    }
    args.strided_amax = a.amax_state;
    args.im2col_amax = c.im2col.amax_state;
    if (c.algo != ConvAlgo::Staged) {
        args.strided.flat_stride = narrow(c.k.count() / 16);  // steps of a panel
        if (c.block_stride != 0) args.im2col.flat_stride = narrow(c.block_stride);
    }
    if (c.weights != nullptr) args.weights = kernels::address(*c.weights);
    args.k = narrow(c.k.count());
    args.batch = narrow(c.groups);
    args.phases = 1;
    args.nc_end = static_cast<uint32_t>(std::min<int64_t>(t.nc_end, UINT32_MAX));
    return args;
}

double operations_of(std::span<const ImplicitGemm> phases) {
    double operations = 0;
    for (const ImplicitGemm& c : phases)
        operations += 2.0 * c.groups * c.strided.rows * c.g.count() * c.k.count();
    return operations;
}

void profile(std::span<const ImplicitGemm> phases, const Plan& plan) {
    const ImplicitGemm& c = phases[0];
    const auto sizes = c10::str(c.strided.tensor->sizes(), " * ", c.im2col.tensor->sizes(), " -> ",
                                c.target.tensor->sizes(), ", split-K ", plan.split_k);
    runtime::profile_work(operations_of(phases), profile_label(plan, sizes));
}

// Grid of a rarely taken fallback: chosen on the device where it is large, so that idle workgroups are not
// even started.
std::optional<runtime::ZeroedWords> cold_grid(const ScaleCondition* condition, Grid grid) {
    constexpr uint64_t kMany = 512;  // take as long as to ask
    const bool ask = condition != nullptr && !condition->scale_valid && uint64_t{grid.x} * grid.y > kMany;
    if (!ask) return {};
    return conditional_grid(*condition, grid);
}

void set_condition(ConvArgs& args, const ScaleCondition* condition) {
    if (condition == nullptr || condition->fused_amax) return;
    args.amaxes = condition->amaxes->address();
    args.amax_count = static_cast<uint32_t>(condition->amaxes->count);
    args.scale_valid = condition->scale_valid;
}

FragmentLayout fragment_layout_of(const ImplicitGemm& c) {
    const auto type = c.strided.tensor->scalar_type();
    return fragment_layout(type == at::kFloat ? at::kBFloat16 : type);
}

void dispatch(std::span<const ImplicitGemm> phases, const Variant& v, const Plan& plan, Compute compute,
              const ScaleCondition* condition) {
    const auto& info = runtime::device().info();
    const Tile& tile = *plan.tile;
    const bool matrix = plan.arithmetic != Arithmetic::Simt;
    const bool rows = v.swapped && !matrix;  // those of the im2col operand
    std::vector<ConvArgs> args;
    uint64_t groups = 0;
    for (const ImplicitGemm& c : phases) {
        args.push_back(arguments(c, v));
        args.back().k_per_split = plan.k_per_split;
        const int64_t f = c.strided.rows, g = c.g.count();
        groups = std::max(groups, plan_groups(info, plan, c.groups, rows ? g : f, rows ? f : g));
    }
    args[0].phase_groups = narrow(static_cast<int64_t>(groups));
    args[0].phases = static_cast<uint32_t>(args.size());
    set_condition(args[0], condition);
    const ImplicitGemm& c = phases[0];
    const bool floats = c.algo == ConvAlgo::NoSmemFlat && c.im2col.tensor->scalar_type() == at::kFloat;
    const bool fused_amax = condition != nullptr && condition->fused_amax;
    const char* arithmetic = fused_amax ? "amax"
                             : floats   ? "floats"
                             : matrix   ? suffix(plan.arithmetic)
                                        : kernels::suffix(compute);
    const std::string kernel = std::string("conv_") + tile.kernel + (rows ? "_swapped_" : "_") + arithmetic;
    const auto prepared = [&]<class Constants>(Constants constants) {
        constants.workgroup = tile.workgroup;
        constants.subgroup = matrix ? matrix_subgroup(info) : info.subgroup_size;
        constants.type_strided = c.strided.pairs ? kBf16x2 : kernels::code(c.strided.tensor->scalar_type());
        constants.type_im2col = c.im2col.pairs ? kBf16x2 : kernels::code(c.im2col.tensor->scalar_type());
        constants.type_out = kernels::code(c.target.tensor->scalar_type());
        constants.layout_strided = static_cast<uint32_t>(v.strided);
        constants.layout_im2col = static_cast<uint32_t>(v.im2col);
        constants.has_bias = c.target.bias != nullptr;
        constants.wide_out = v.wide_out;
        constants.tile_m = tile.m;
        constants.spatial = v.spatial;
        constants.flat_k = v.flat_k;
        constants.channels_last_row = c.g.channels_last;
        constants.channels_last_k = c.k.channels_last;
        constants.checked = v.checked;
        constants.rows_first = matrix && v.swapped;
        constants.scaled = c.strided.amax_state != 0;
        constants.iterator_mode = static_cast<uint32_t>(v.mode);
        return KernelCall(kernels::kernel_id(kernel), constants.values());
    };
    const auto without_smem = [&] {
        const FragmentLayout layout = fragment_layout_of(c);
        return prepared(shaders::conv_nosmem::Constants{
            .a_swapped = layout.a_swapped, .b_swapped = layout.b_swapped, .acc_swapped = layout.acc_swapped});
    };
    KernelCall call = c.algo == ConvAlgo::Staged ? prepared(shaders::conv::Constants{}) : without_smem();
    for (const ImplicitGemm& phase : phases) call.read(*phase.strided.tensor);
    call.read(*c.im2col.tensor).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    if (c.weights != nullptr) call.read(*c.weights);
    if (condition != nullptr) condition->amaxes->read_by(call);
    if (fused_amax) call.write(c.im2col.amax_state, AmaxStates::kSampleOffset);
    const Grid grid = Grid::linear(groups * args.size());
    const auto asked = cold_grid(condition, grid);
    if (runtime::profiling()) profile(phases, plan);
    runtime::note_dispatch({.operations = asked ? 0 : operations_of(phases)});
    const size_t bytes = args.size() * sizeof(ConvArgs);
    if (asked) return call.dispatch_pointer(args.data(), bytes, asked->address());
    call.dispatch_pointer(args.data(), bytes, grid);
}

constexpr kernels::KernelFamily kSum(shaders::conv::kernels_with<ConvArgs>, {"conv_reduce_split_k_"},
                                     {"f32", "i32", "i64"});  // by Compute

void reduce_split_k(const ImplicitGemm& c, const Tensor& workspace, const Plan& plan, Compute compute,
                    const ScaleCondition* condition) {
    const Variant v = variant_of({&c, 1}, Block::Vec4, false);
    ConvArgs args = arguments(c, v);
    args.strided.base = kernels::address(workspace);
    args.k = narrow(workspace.size(0));
    set_condition(args, condition);
    const uint32_t workgroup = kernels::flat_workgroup();
    const int64_t g = c.g.count(), matrix = c.strided.rows * g;
    const uint64_t results = static_cast<uint64_t>(c.groups) * matrix;
    // vec4 for many results of few slices; these lie in two rows and one image at most.
    constexpr uint64_t kMaxSplitK = 16;
    const bool follow = run_of(c.g, c.target.g).stride == 1;
    const bool quads = uses_shared_memory(runtime::device().info()) && compute == Compute::F32 && follow &&
                       matrix % 4 == 0 && g >= 4 && args.k <= kMaxSplitK;
    const bool wide = quads && v.wide_out && c.target.nc_end >= c.g.n_or_c;
    auto call = kSum(0, static_cast<size_t>(compute))
                    .call({.workgroup = workgroup,
                           .type_strided = kernels::code(workspace.scalar_type()),
                           .type_out = kernels::code(c.target.tensor->scalar_type()),
                           .has_bias = c.target.bias != nullptr,
                           .wide_out = wide,
                           .tile_m = quads ? 4u : 1u,
                           .spatial = v.spatial,
                           .channels_last_row = c.g.channels_last});
    call.read(workspace).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    if (condition != nullptr) condition->amaxes->read_by(call);
    const Grid grid = kernels::flat_grid(quads ? results / 4 : results);
    const auto asked = cold_grid(condition, grid);
    if (runtime::profiling()) runtime::profile_work(0, profile_label(plan, c10::str(results, " results")));
    if (asked) return call.dispatch(args, asked->address());
    call.dispatch(args, grid);
}

Compute checked_compute(const Tensor& out) {
    const auto type = out.scalar_type();
    const Compute compute = kernels::compute_of(type);
    const bool known = compute == Compute::F32 || type == at::kInt || type == at::kLong ||
                       type == at::kShort || type == at::kChar || type == at::kByte;
    TORCH_CHECK_NOT_IMPLEMENTED(known, "\"convolution\" not implemented for '", c10::toString(type), "'");
    return compute;
}

Block block_of(const Plan& plan) {
    if (plan.arithmetic != Arithmetic::Simt) return Block::Vec8;
    return plan.tile->m == 1 ? Block::Scalar : Block::Vec4;
}

Variant variant_for(std::span<const ImplicitGemm> some, const Plan& plan, bool swapped) {
    if (some[0].algo == ConvAlgo::Staged) return variant_of(some, block_of(plan), swapped);
    Variant v = variant_of(some, Block::Vec4, false);
    // Pairs of results lie in the lanes as by taps.
    if (some[0].algo == ConvAlgo::NoSmemBlocked) v.mode = IteratorMode::Taps;
    return v;
}

// A number for what the speed depends on besides the sizes of the product: windows and the order of memory.
uint64_t variant_number(const ImplicitGemm& c) {
    uint64_t number = 1;
    const auto add = [&](int64_t value) {
        number = (number ^ static_cast<uint64_t>(value)) * 0x100000001b3ull;
    };
    for (int axis = 0; axis < 3; ++axis) {
        for (const int64_t value : {c.g.spatial[axis], c.k.spatial[axis], c.im2col.row_step[axis],
                                    c.im2col.k_step[axis], c.im2col.start[axis]}) {
            add(value);
        }
    }
    for (const bool value :
         {c.g.channels_last, c.k.channels_last, c.target.row_stride == 1, c.target.bias != nullptr,
          c.im2col.amax_state != 0 && c.im2col.tensor->scalar_type() == at::kFloat}) {
        add(value);
    }
    return number;
}

void run_split_k(const ImplicitGemm& c, const Plan& plan, Compute compute, const ScaleCondition* condition) {
    const auto accumulator = compute == Compute::F32   ? at::kFloat
                             : compute == Compute::I32 ? at::kInt
                                                       : at::kLong;
    const int64_t f = c.strided.rows, g = c.g.count();
    const Tensor workspace =
        at::empty({plan.split_k, c.groups, f, g}, c.target.tensor->options().dtype(accumulator));
    ImplicitGemm partial = c;
    // Contiguous in the order of g's digits, the plain one first or last.
    const Dim3& s = c.g.spatial;
    const int64_t unit = c.g.channels_last ? c.g.n_or_c : 1;
    partial.target = {
        &workspace, 0,
        g,          {{s[1] * s[2] * unit, s[2] * unit, unit}, c.g.channels_last ? 1 : s[0] * s[1] * s[2]},
        f * g,      nullptr};
    const bool swapped = plan.swapped && plan.arithmetic == Arithmetic::Simt;
    dispatch({&partial, 1}, variant_for({&partial, 1}, plan, swapped), plan, compute, condition);
    reduce_split_k(c, workspace, plan, compute, condition);
}

// The tiles' lanes store to columns of their own, eight lanes a line of results.
bool has_lines_of_lanes() {
    return matrix_subgroup(runtime::device().info()) >= 8;
}

// bf16 terms of an f32 operand.
uint32_t bf16_terms_of_f32() {
    return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV) ? 2 : 3;
}

}  // namespace

Arithmetic arithmetic_of(const ImplicitGemm& c) {
    constexpr int64_t kMinRows = 8;
    const auto type = c.strided.amax_state != 0 ? at::kHalf : c.strided.tensor->scalar_type();
    if (c.strided.amax_state == 0 && type != c.im2col.tensor->scalar_type()) return Arithmetic::Simt;
    if (!has_lines_of_lanes() || (c.groups > 1 && c.strided.rows < kMinRows)) return Arithmetic::Simt;
    return choose_arithmetic(runtime::device().info(), type == at::kHalf, type == at::kBFloat16,
                             type == at::kFloat, type == at::kFloat ? bf16_terms_of_f32() : 3);
}

bool may_use_scaled_f16(const Tensor& factor) {
    return factor.scalar_type() == at::kFloat && bf16_terms_of_f32() < 3 && has_lines_of_lanes() &&
           choose_arithmetic(runtime::device().info(), true, false, false, 3) == Arithmetic::F16;
}

Vectorizable is_vectorizable(std::span<const ImplicitGemm> phases) {
    // Tiles count words of eight halves by 31 bits.
    constexpr uint64_t kMaxBytes = uint64_t{1} << 35;
    for (const ImplicitGemm& c : phases) {
        if (c.strided.tensor->storage().nbytes() > kMaxBytes) return {false, false};
        if (c.im2col.tensor->storage().nbytes() > kMaxBytes) return {false, false};
    }
    const Variant v = variant_of(phases, Block::Vec8, false);
    const auto wide = [](BlockLayout layout) {
        return layout == BlockLayout::KMajorVec || layout == BlockLayout::MnMajorVec;
    };
    return {wide(v.strided), wide(v.im2col)};
}

bool reads_positions(const ImplicitGemm& c) {
    const Variant v = variant_of({&c, 1}, Block::Vec4, false);
    return v.im2col == BlockLayout::MnMajorVec && v.mode == IteratorMode::Linear && v.wide_out;
}

bool stores_vec4(std::span<const ImplicitGemm> phases) {
    return variant_of(phases, Block::Vec4, false).wide_out;
}

void reduce_split_k(const ImplicitGemm& c, const Tensor& workspace) {
    reduce_split_k(c, workspace, {}, Compute::F32, nullptr);
}

void run_implicit_gemms(std::vector<ImplicitGemm> phases, int64_t max_k_per_split,
                        const ScaleCondition* condition) {
    std::erase_if(phases, [](const ImplicitGemm& c) { return c.groups * c.strided.rows * c.g.count() == 0; });
    if (phases.empty()) return;
    const ImplicitGemm& first = phases[0];
    const Compute compute = checked_compute(*first.target.tensor);
    const auto& info = runtime::device().info();
    const int64_t f = first.strided.rows;
    int64_t g = 0, k = 0;
    for (const ImplicitGemm& c : phases) {
        g = std::max(g, c.g.count());
        k = std::max(k, c.k.count());
    }
    // Stores follow the channels where neighbouring results are neighbouring channels: the tiles of lanes let
    // rows and columns change places, those of matrix units store their columns.
    const bool swapped = uses_shared_memory(info) && first.algo == ConvAlgo::Staged &&
                         compute == Compute::F32 && first.target.row_stride == 1 && f > 1 &&
                         run_of(first.g, first.target.g).stride != 1;
    GemmProblem problem;
    problem.convolution = true;
    if (compute == Compute::F32) problem.arithmetic = arithmetic_of(first);
    problem.algo = first.algo;
    if (first.algo == ConvAlgo::NoSmemBf16x2) problem.arithmetic = Arithmetic::BF16;
    if (problem.arithmetic != Arithmetic::Simt && first.algo == ConvAlgo::Staged &&
        !is_vectorizable(phases).both()) {
        TORCH_INTERNAL_ASSERT(!first.strided.pairs && !first.im2col.pairs);
        problem.arithmetic = Arithmetic::Simt;
    }
    const bool exchanged = swapped && problem.arithmetic == Arithmetic::Simt;
    problem.batch = first.groups * static_cast<int64_t>(phases.size());
    problem.m = exchanged ? g : f;
    problem.n = exchanged ? f : g;
    problem.k = k;
    problem.floating = compute == Compute::F32;
    // Depthwise weight gradients: few, long sums.
    problem.k_contiguous = problem.arithmetic == Arithmetic::Simt && f < 4 && g < 64 && k >= 256;
    problem.may_split_k = phases.size() == 1;
    problem.max_k_per_split = max_k_per_split;
    problem.variant = variant_number(first);
    // The fallback is not tuned.
    Plan plan = choose_plan(info, problem, condition != nullptr && !condition->scale_valid);
    plan.swapped = swapped && plan.tile->m > 1;
    const bool padded = first.target.nc_end < first.g.n_or_c;
    if (phases.size() == 1 && (plan.split_k > 1 || padded))
        return run_split_k(first, plan, compute, condition);
    plan.split_k = 1;
    plan.k_per_split = narrow((k + 15) / 16 * 16 + 16);
    for (size_t begin = 0; begin < phases.size(); begin += kMaxPhases) {
        const auto some =
            std::span<const ImplicitGemm>(phases).subspan(begin, std::min(kMaxPhases, phases.size() - begin));
        dispatch(some, variant_for(some, plan, plan.swapped), plan, compute, condition);
    }
}

}  // namespace anymps::ops
