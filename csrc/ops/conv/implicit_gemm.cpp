#include "ops/conv/implicit_gemm.h"

#include <anymps/shaders/conv/conv.h>
#include <anymps/shaders/conv/conv_nosmem.h>
#include <anymps/shaders/lib/product.h>

#include <algorithm>
#include <limits>
#include <string>

#include "gemm/tiles.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/conv/text.h"
#include "ops/conv/variant.h"

namespace anymps::ops {

using gemm::Arithmetic;
using gemm::ConvAlgo;

namespace {

using kernels::Compute;
using kernels::FastDivider;
using runtime::Grid;

using shaders::conv::ConvArgs;
using shaders::conv_operand::CoordinateSizes;
using shaders::conv_operand::Im2colArgs;
using CoordinateStrideArgs = shaders::conv_operand::CoordinateStrides;

constexpr uint32_t kBf16x2 = shaders::product::kBf16x2;

constexpr size_t kMaxPhases = 128;  // of one dispatch, in the argument ring

uint32_t narrow(int64_t value) {
    check(value >= 0 && value <= std::numeric_limits<int32_t>::max(), "convolution: a size or stride of ",
          value, " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

// Sizes of the fast coordinates; the slowest is what is left.
CoordinateSizes sizes_of(const Coordinates& coordinates, uint32_t spatial) {
    CoordinateSizes result;
    result.sizes.fill(FastDivider());
    uint32_t next = 0;
    if (coordinates.channels_last) result.sizes[next++] = FastDivider(narrow(coordinates.n_or_c));
    for (uint32_t s = 0; s < spatial && next < 3; ++s)
        result.sizes[next++] = FastDivider(narrow(coordinates.spatial[2 - s]));
    return result;
}

// Strides of coordinates of size 1 are never used, and may be anything.
CoordinateStrideArgs strides_of(const Coordinates& coordinates, const CoordinateStrides& strides) {
    CoordinateStrideArgs result{};
    for (int axis = 0; axis < 3; ++axis) {
        result.values[axis] =
            coordinates.spatial[axis] > 1 ? static_cast<uint64_t>(strides.spatial[axis]) : 0;
    }
    result.values[3] = coordinates.n_or_c > 1 ? static_cast<uint64_t>(strides.n_or_c) : 0;
    return result;
}

// Addresses are left to set_addresses.
Im2colArgs im2col_args(const ImplicitGemm& c, const Variant& variant) {
    const Im2colOperand& b = c.im2col;
    Im2colArgs args{};
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
    if (c.block_stride != 0) args.flat_stride = narrow(c.block_stride);
    args.taps = narrow(c.k.positions());
    return args;
}

ConvArgs arguments(const ImplicitGemm& c, const Variant& variant) {
    ConvArgs args{};
    const StridedOperand& a = c.strided;
    args.strided.z_stride = static_cast<uint64_t>(a.group_stride);
    args.strided.row_stride = a.rows > 1 ? static_cast<uint64_t>(a.row_stride) : 0;
    args.strided.k_strides = strides_of(c.k, a.k);
    args.strided.flat_stride = variant.flat_k ? narrow(run_of(c.k, a.k).stride) : 0;
    if (c.algo != ConvAlgo::Staged) args.strided.flat_stride = narrow(c.k.count() / 16);  // steps of a panel
    args.strided.rows = narrow(a.rows);
    args.im2col = im2col_args(c, variant);
    args.row_coordinates = sizes_of(c.g, variant.spatial);
    args.k_coordinates = sizes_of(c.k, variant.spatial);
    const ConvTarget& t = c.target;
    args.out_z = static_cast<uint64_t>(t.group_stride);
    args.out_f = static_cast<uint64_t>(t.row_stride);
    args.out_g = strides_of(c.g, t.g);
    if (t.bias.defined()) args.bias_stride = narrow(t.bias_stride);
    args.k = narrow(c.k.count());
    args.batch = narrow(c.groups);
    args.phases = 1;
    args.nc_end = static_cast<uint32_t>(std::min<int64_t>(t.nc_end, UINT32_MAX));
    return args;
}

// And what is read besides the two operands.
void set_addresses(PassWriter& pass, const ImplicitGemm& c, ConvArgs& args) {
    pass.address(args.strided.base, c.strided.memory, c.strided.offset)
        .amax(args.strided_amax, c.strided.amax);
    pass.address(args.im2col.base, c.im2col.memory).amax(args.im2col_amax, c.im2col.amax);
    pass.address(args.out, c.target.memory, c.target.offset);
    const ConvEpilogue& epilogue = c.target.epilogue;
    const auto optional = [&](uint64_t& field, const Memory& memory, int64_t offset = 0) {
        if (memory.defined()) pass.address(field, memory, offset).read(memory);
    };
    optional(args.bias, c.target.bias);
    optional(args.weights, c.weights);
    optional(args.operand, epilogue.operand, c.target.offset);
    optional(args.channel_scale, epilogue.scale);
    optional(args.channel_shift, epilogue.shift);
}

void set_condition(PassWriter& pass, PlanBuilder& builder, ConvArgs& args, When when) {
    pass.when(when);
    if (when == When::Always || when == When::Fused) return;
    pass.amax(args.amaxes, 0);
    args.amax_count = static_cast<uint32_t>(builder.plan.amax_count);
    args.scale_valid = when == When::ScaleValid;
}

// What is decided for some GEMMs before they are written down.
struct GemmPlan {
    gemm::Plan plan;
    Compute compute;
    When when;

    bool matrix() const { return plan.arithmetic != Arithmetic::Simt; }
    Block block() const { return matrix() ? Block::Vec8 : plan.tile->m == 1 ? Block::Scalar : Block::Vec4; }
};

Variant variant_for(const vulkan::DeviceInfo& device, std::span<const ImplicitGemm> some,
                    const GemmPlan& gemm, bool swapped) {
    if (some[0].algo == ConvAlgo::Staged) return variant_of(device, some, gemm.block(), swapped);
    Variant v = variant_of(device, some, Block::Vec4, false);
    // Pairs of results lie in the lanes as by taps.
    if (some[0].algo == ConvAlgo::NoSmemBlocked) v.mode = IteratorMode::Taps;
    return v;
}

std::string kernel_name(const ImplicitGemm& c, const GemmPlan& gemm, bool rows) {
    const bool floats = c.algo == ConvAlgo::NoSmemFlat && c.im2col.memory.type == DType::F32;
    const char* arithmetic = gemm.when == When::Fused ? "amax"
                             : floats                 ? "floats"
                             : gemm.matrix()          ? gemm::suffix(gemm.plan.arithmetic)
                                                      : kernels::suffix(gemm.compute);
    return std::string("conv_") + gemm.plan.tile->kernel + (rows ? "_swapped_" : "_") + arithmetic;
}

template <class Constants>
Constants constants_of(const vulkan::DeviceInfo& device, const ImplicitGemm& c, const GemmPlan& gemm,
                       const Variant& v, Constants constants) {
    const gemm::Tile& tile = *gemm.plan.tile;
    const auto code = [](bool pairs, const Memory& memory) {
        return pairs ? kBf16x2 : kernels::code(memory.type);
    };
    constants.workgroup = tile.workgroup;
    constants.subgroup = gemm.matrix() ? gemm::matrix_subgroup(device) : device.subgroup_size;
    constants.type_strided = code(c.strided.pairs, c.strided.memory);
    constants.type_im2col = code(c.im2col.pairs, c.im2col.memory);
    constants.type_out = kernels::code(c.target.memory.type);
    constants.layout_strided = static_cast<uint32_t>(v.strided);
    constants.layout_im2col = static_cast<uint32_t>(v.im2col);
    constants.has_bias = c.target.bias.defined();
    constants.has_scale = c.target.epilogue.scale.defined();
    constants.epilogue = c.target.epilogue.steps;
    constants.wide_out = v.wide_out;
    constants.tile_m = tile.m;
    constants.spatial = v.spatial;
    constants.flat_k = v.flat_k;
    constants.channels_last_row = c.g.channels_last;
    constants.channels_last_k = c.k.channels_last;
    constants.checked = v.checked;
    constants.rows_first = gemm.matrix() && v.swapped;
    constants.scaled = c.strided.amax >= 0;
    constants.iterator_mode = static_cast<uint32_t>(v.mode);
    return constants;
}

std::string label_of(const PlanBuilder& builder, const ImplicitGemm& c, const gemm::Plan& plan) {
    return builder.device.label(
        plan, text_of(builder.sizes(c.strided.memory), " * ", builder.sizes(c.im2col.memory), " -> ",
                      builder.sizes(c.target.memory), ", split-K ", plan.split_k));
}

void add_dispatch(PlanBuilder& builder, std::span<const ImplicitGemm> phases, const Variant& v,
                  const GemmPlan& gemm) {
    const auto& info = builder.device.info;
    const gemm::Plan& plan = gemm.plan;
    const ImplicitGemm& c = phases[0];
    const bool rows = v.swapped && !gemm.matrix();  // those of the im2col operand
    std::vector<ConvArgs> args;
    uint64_t groups = 0;
    double operations = 0;
    for (const ImplicitGemm& phase : phases) {
        args.push_back(arguments(phase, v));
        args.back().k_per_split = plan.k_per_split;
        const int64_t f = phase.strided.rows, g = phase.g.count();
        groups = std::max(groups, gemm::plan_groups(info, plan, phase.groups, rows ? g : f, rows ? f : g));
        operations += 2.0 * static_cast<double>(phase.products());
    }
    args[0].phase_groups = narrow(static_cast<int64_t>(groups));
    args[0].phases = static_cast<uint32_t>(args.size());
    const std::string kernel = kernel_name(c, gemm, rows);
    const auto writer = [&](const auto& constants) {
        return PassWriter(builder, kernel, true, constants_of(info, c, gemm, v, constants).values());
    };
    const gemm::FragmentLayout layout = c.algo == ConvAlgo::Staged
                                            ? gemm::FragmentLayout{}
                                            : builder.device.layout(multiplied_type(c.strided.memory.type));
    PassWriter pass = c.algo == ConvAlgo::Staged
                          ? writer(shaders::conv::Constants{})
                          : writer(shaders::conv_nosmem::Constants{.a_swapped = layout.a_swapped,
                                                                   .b_swapped = layout.b_swapped,
                                                                   .acc_swapped = layout.acc_swapped});
    for (size_t i = 0; i < phases.size(); ++i) {
        set_addresses(pass, phases[i], args[i]);
        pass.read(phases[i].strided.memory);
    }
    pass.read(c.im2col.memory).write(c.target.memory);
    set_condition(pass, builder, args[0], gemm.when);
    if (gemm.when == When::Fused) pass.write_amax(c.im2col.amax);
    pass.work(operations, label_of(builder, c, plan), plan.seconds);
    pass.dispatch(args.data(), args.size() * sizeof(ConvArgs), Grid::linear(groups * args.size()));
}

constexpr kernels::KernelFamily kSum(shaders::conv::kernels_with<ConvArgs>, {"conv_reduce_split_k_"},
                                     {"f32", "i32", "i64"});  // by Compute

void add_reduction(PlanBuilder& builder, const ImplicitGemm& c, const Memory& workspace,
                   const GemmPlan& gemm) {
    const auto& info = builder.device.info;
    const Variant v = variant_of(info, {&c, 1}, Block::Vec4, false);
    ConvArgs args = arguments(c, v);
    args.k = gemm.plan.split_k;
    const uint32_t workgroup = builder.device.flat_workgroup();
    const int64_t g = c.g.count(), matrix = c.strided.rows * g;
    const uint64_t results = static_cast<uint64_t>(c.groups) * matrix;
    // vec4 for many results of few slices; these lie in two rows and one image at most.
    constexpr uint64_t kMaxSplitK = 16;
    const bool follow = run_of(c.g, c.target.g).stride == 1;
    const bool quads = gemm::uses_shared_memory(info) && gemm.compute == Compute::F32 && follow &&
                       matrix % 4 == 0 && g >= 4 && args.k <= kMaxSplitK;
    const bool wide = quads && v.wide_out && c.target.nc_end >= c.g.n_or_c;
    PassWriter pass(builder, kSum(0, static_cast<size_t>(gemm.compute)),
                    {.workgroup = workgroup,
                     .type_strided = kernels::code(workspace.type),
                     .type_out = kernels::code(c.target.memory.type),
                     .has_bias = c.target.bias.defined(),
                     .wide_out = wide,
                     .tile_m = quads ? 4u : 1u,
                     .epilogue = c.target.epilogue.steps,
                     .spatial = v.spatial,
                     .channels_last_row = c.g.channels_last,
                     .has_scale = c.target.epilogue.scale.defined()});
    ImplicitGemm read = c;
    read.strided.memory = workspace;
    read.strided.offset = 0;
    set_addresses(pass, read, args);
    pass.read(workspace).write(c.target.memory);
    set_condition(pass, builder, args, gemm.when);
    pass.work(0, builder.device.label(gemm.plan, text_of(results, " results")));
    pass.dispatch(args, Grid::linear(kernels::ceil_div(quads ? results / 4 : results, workgroup)));
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
         {c.g.channels_last, c.k.channels_last, c.target.row_stride == 1, c.target.bias.defined(),
          c.im2col.amax >= 0 && c.im2col.memory.type == DType::F32}) {
        add(value);
    }
    return number;
}

// Split-K and its reduction; also of results with padding, which only the reduction leaves out.
void add_split_k(PlanBuilder& builder, const ImplicitGemm& c, const GemmPlan& gemm) {
    const auto accumulator = gemm.compute == Compute::F32   ? DType::F32
                             : gemm.compute == Compute::I32 ? DType::I32
                                                            : DType::I64;
    const int64_t f = c.strided.rows, g = c.g.count();
    const Memory workspace = builder.temporary({gemm.plan.split_k, c.groups, f, g}, accumulator);
    ImplicitGemm partial = c;
    // Contiguous in the order of g's coordinates, n or c first or last.
    const Dim3& s = c.g.spatial;
    const int64_t unit = c.g.channels_last ? c.g.n_or_c : 1;
    partial.target = {workspace,
                      0,
                      g,
                      {{s[1] * s[2] * unit, s[2] * unit, unit}, c.g.channels_last ? 1 : s[0] * s[1] * s[2]},
                      f * g};
    const bool swapped = gemm.plan.swapped && !gemm.matrix();
    add_dispatch(builder, {&partial, 1}, variant_for(builder.device.info, {&partial, 1}, gemm, swapped),
                 gemm);
    add_reduction(builder, c, workspace, gemm);
    builder.release(workspace.buffer);
}

// Largest phase counts: the tiles suit them all.
gemm::GemmProblem gemm_problem(const ConvDevice& device, std::span<const ImplicitGemm> phases,
                               Compute compute, bool swapped, int64_t max_k_per_split) {
    const ImplicitGemm& first = phases[0];
    const int64_t f = first.strided.rows;
    int64_t g = 0, k = 0;
    for (const ImplicitGemm& c : phases) {
        g = std::max(g, c.g.count());
        k = std::max(k, c.k.count());
    }
    gemm::GemmProblem problem;
    problem.convolution = true;
    if (compute == Compute::F32) problem.arithmetic = arithmetic_of(device, first);
    problem.algo = first.algo;
    if (first.algo == ConvAlgo::NoSmemBf16x2) problem.arithmetic = Arithmetic::BF16;
    if (problem.arithmetic != Arithmetic::Simt && first.algo == ConvAlgo::Staged &&
        !is_vectorizable(device.info, phases).both()) {
        assert_that(!first.strided.pairs && !first.im2col.pairs);
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
    return problem;
}

}  // namespace

Arithmetic arithmetic_of(const ConvDevice& device, const ImplicitGemm& c) {
    constexpr int64_t kMinRows = 8;
    const auto type = c.strided.amax >= 0 ? DType::F16 : c.strided.memory.type;
    if (c.strided.amax < 0 && type != c.im2col.memory.type) return Arithmetic::Simt;
    if (!device.has_lines_of_lanes() || (c.groups > 1 && c.strided.rows < kMinRows)) return Arithmetic::Simt;
    return gemm::choose_arithmetic(device.info, type == DType::F16, type == DType::BF16, type == DType::F32,
                                   type == DType::F32 ? device.bf16_terms() : 3);
}

void add_reduce_split_k(PlanBuilder& builder, const ImplicitGemm& c, const Memory& workspace,
                        int64_t split_k) {
    GemmPlan gemm{{}, Compute::F32, When::Always};
    gemm.plan.split_k = static_cast<uint32_t>(split_k);
    add_reduction(builder, c, workspace, gemm);
}

void add_implicit_gemms(PlanBuilder& builder, std::vector<ImplicitGemm> phases, int64_t max_k_per_split,
                        When when) {
    std::erase_if(phases, [](const ImplicitGemm& c) { return c.groups * c.strided.rows * c.g.count() == 0; });
    if (phases.empty()) return;
    const auto& info = builder.device.info;
    const ImplicitGemm& first = phases[0];
    const Compute compute = kernels::compute_of(first.target.memory.type);
    // Stores follow the channels where neighbouring results are neighbouring channels: SIMT tiles let rows
    // and columns change places, those of matrix units store their columns.
    const bool swapped = gemm::uses_shared_memory(info) && first.algo == ConvAlgo::Staged &&
                         compute == Compute::F32 && first.target.row_stride == 1 && first.strided.rows > 1 &&
                         run_of(first.g, first.target.g).stride != 1;
    const gemm::GemmProblem problem = gemm_problem(builder.device, phases, compute, swapped, max_k_per_split);
    // The fallback is not tuned.
    GemmPlan gemm{builder.device.choose(info, problem, when == When::Fallback), compute, when};
    gemm.plan.swapped = swapped && gemm.plan.tile->m > 1;
    const bool padded = first.target.nc_end < first.g.n_or_c;
    if (phases.size() == 1 && (gemm.plan.split_k > 1 || padded)) return add_split_k(builder, first, gemm);
    gemm.plan.split_k = 1;
    gemm.plan.k_per_split = narrow((static_cast<int64_t>(problem.k) + 15) / 16 * 16 + 16);
    for (size_t begin = 0; begin < phases.size(); begin += kMaxPhases) {
        const auto some =
            std::span<const ImplicitGemm>(phases).subspan(begin, std::min(kMaxPhases, phases.size() - begin));
        add_dispatch(builder, some, variant_for(info, some, gemm, gemm.plan.swapped), gemm);
    }
}

}  // namespace anymps::ops
