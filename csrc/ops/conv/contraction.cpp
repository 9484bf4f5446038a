#include "ops/conv/contraction.h"

#include <anymps/shaders/conv.h>
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
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::FastDivider;
using kernels::Grid;
using kernels::KernelCall;

using shaders::conv::ConvArgs;
using shaders::lib::conv_operand::DigitSizes;
using shaders::lib::conv_operand::GatherArgs;
using DigitStrideArgs = shaders::lib::conv_operand::DigitStrides;

constexpr uint32_t kPairs = shaders::lib::product::kPairs;

constexpr size_t kMostPhases = 128;  // of one dispatch, in the argument ring

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(),
                "convolution: a size or stride of ", value, " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

// The sizes of the fast digits; the slowest is what is left.
DigitSizes sizes_of(const Digits& digits, uint32_t spatial) {
    DigitSizes result;
    result.sizes.fill(FastDivider());
    uint32_t next = 0;
    if (digits.plain_fastest) result.sizes[next++] = FastDivider(narrow(digits.plain));
    for (uint32_t s = 0; s < spatial && next < 3; ++s)
        result.sizes[next++] = FastDivider(narrow(digits.spatial[2 - s]));
    return result;
}

// Strides of digits of size 1 are never used, and may be anything.
DigitStrideArgs strides_of(const Digits& digits, const DigitStrides& strides) {
    DigitStrideArgs result{};
    for (int axis = 0; axis < 3; ++axis) {
        result.values[axis] = digits.spatial[axis] > 1 ? static_cast<uint64_t>(strides.spatial[axis]) : 0;
    }
    result.values[3] = digits.plain > 1 ? static_cast<uint64_t>(strides.plain) : 0;
    return result;
}

GatherArgs gather_args(const Contraction& c, const Variant& variant) {
    const GatheredFactor& b = c.gathered;
    GatherArgs args{};
    args.base = kernels::address(*b.tensor);
    args.z_stride = static_cast<uint64_t>(b.group_stride);
    args.row_plain_stride = c.g.plain > 1 ? static_cast<uint64_t>(b.row_plain_stride) : 0;
    args.k_plain_stride = c.k.plain > 1 ? static_cast<uint64_t>(b.k_plain_stride) : 0;
    args.rows = narrow(c.g.count());
    for (int axis = 0; axis < 3; ++axis) {
        args.row_step[axis] = static_cast<int32_t>(b.row_step[axis]);
        args.k_step[axis] = static_cast<int32_t>(b.k_step[axis]);
        args.start[axis] = static_cast<int32_t>(b.start[axis]);
        args.size[axis] = narrow(b.size[axis]);
        args.stride[axis] = b.size[axis] > 1 ? narrow(b.stride[axis]) : 0;
    }
    if (variant.walk == Walk::Linear) args.flat_stride = narrow(gathered_run(c).stride);
    args.taps = narrow(c.k.positions());
    return args;
}

ConvArgs arguments(const Contraction& c, const Variant& variant) {
    ConvArgs args{};
    const AffineFactor& a = c.affine;
    args.affine.base = kernels::address(*a.tensor) + a.offset * a.tensor->element_size();
    args.affine.z_stride = static_cast<uint64_t>(a.group_stride);
    args.affine.row_stride = a.rows > 1 ? static_cast<uint64_t>(a.row_stride) : 0;
    args.affine.k_strides = strides_of(c.k, a.k);
    args.affine.flat_stride = variant.flat_k ? narrow(run_of(c.k, a.k).stride) : 0;
    args.affine.rows = narrow(a.rows);
    args.gather = gather_args(c, variant);
    args.row_digits = sizes_of(c.g, variant.spatial);
    args.k_digits = sizes_of(c.k, variant.spatial);
    const ConvTarget& t = c.target;
    args.out = kernels::address(*t.tensor) + t.offset * t.tensor->element_size();
    args.out_z = static_cast<uint64_t>(t.group_stride);
    args.out_f = static_cast<uint64_t>(t.row_stride);
    args.out_g = strides_of(c.g, t.g);
    if (t.bias != nullptr) {
        args.bias = kernels::address(*t.bias);
        args.bias_stride = narrow(t.bias->stride(0));
    }
    args.affine_range = a.range;
    args.gather_range = c.gathered.range;
    if (c.direct != Direct::None) {
        args.affine.flat_stride = narrow(c.k.count() / 16);  // steps of a panel
        if (c.block_stride != 0) args.gather.flat_stride = narrow(c.block_stride);
    }
    if (c.weights != nullptr) args.weights = kernels::address(*c.weights);
    args.k = narrow(c.k.count());
    args.batch = narrow(c.groups);
    args.phases = 1;
    args.plain_end = static_cast<uint32_t>(std::min<int64_t>(t.plain_end, UINT32_MAX));
    return args;
}

void profile(std::span<const Contraction> phases, const Plan& plan) {
    double operations = 0;
    for (const Contraction& c : phases)
        operations += 2.0 * c.groups * c.affine.rows * c.g.count() * c.k.count();
    const Contraction& c = phases[0];
    const auto sizes = c10::str(c.affine.tensor->sizes(), " * ", c.gathered.tensor->sizes(), " -> ",
                                c.target.tensor->sizes(), ", ", plan.parts, " parts");
    runtime::profile_work(operations, profile_label(plan, sizes));
}

// What fits runs, and what does not ends at once. Many workgroups that seldom run are not even started.
std::optional<runtime::ZeroedWords> seldom_grid(const HalfChoice* choice, Grid grid) {
    constexpr uint64_t kMany = 512;  // take as long as to ask
    const bool ask = choice != nullptr && !choice->fit && uint64_t{grid.x} * grid.y > kMany;
    if (!ask) return {};
    return grid_of(*choice, grid);
}

void set_choice(ConvArgs& args, const HalfChoice* choice) {
    if (choice == nullptr || choice->sees) return;
    args.ranges = choice->ranges->address();
    args.range_count = static_cast<uint32_t>(choice->ranges->count);
    args.fit = choice->fit;
}

FragmentPlaces places_of(const Contraction& c) {
    const auto type = c.affine.tensor->scalar_type();
    return fragment_places(type == at::kFloat ? at::kBFloat16 : type);
}

void dispatch(std::span<const Contraction> phases, const Variant& v, const Plan& plan, Compute compute,
              const HalfChoice* choice) {
    const auto& info = runtime::device().info();
    const Tile& tile = *plan.tile;
    const bool matrix = plan.arithmetic != Arithmetic::Lanes;
    const bool rows = v.swapped && !matrix;  // the gathered ones
    std::vector<ConvArgs> args;
    uint64_t groups = 0;
    for (const Contraction& c : phases) {
        args.push_back(arguments(c, v));
        args.back().part = plan.part_k;
        const int64_t f = c.affine.rows, g = c.g.count();
        groups = std::max(groups, plan_groups(info, plan, c.groups, rows ? g : f, rows ? f : g));
    }
    args[0].phase_groups = narrow(static_cast<int64_t>(groups));
    args[0].phases = static_cast<uint32_t>(args.size());
    set_choice(args[0], choice);
    const Contraction& c = phases[0];
    const bool floats = c.direct == Direct::Positions && c.gathered.tensor->scalar_type() == at::kFloat;
    const bool sees = choice != nullptr && choice->sees;
    const char* arithmetic = sees     ? "seen"
                             : floats ? "floats"
                             : matrix ? suffix(plan.arithmetic)
                                      : kernels::suffix(compute);
    const std::string kernel = std::string("conv_") + tile.kernel + (rows ? "_swapped_" : "_") + arithmetic;
    const FragmentPlaces places = c.direct != Direct::None ? places_of(c) : FragmentPlaces{};
    const uint32_t specialization[] = {
        tile.workgroup,
        matrix ? matrix_subgroup(info) : info.subgroup_size,
        c.affine.pairs ? kPairs : kernels::code(c.affine.tensor->scalar_type()),
        c.gathered.pairs ? kPairs : kernels::code(c.gathered.tensor->scalar_type()),
        kernels::code(c.target.tensor->scalar_type()),
        static_cast<uint32_t>(v.affine),
        static_cast<uint32_t>(v.gathered),
        c.target.bias != nullptr,
        v.wide_out,
        tile.m,
        places.left_swapped,
        places.right_swapped,
        places.sums_swapped,
        0,
        v.spatial,
        v.flat_k,
        c.g.plain_fastest,
        c.k.plain_fastest,
        v.checked,
        matrix && v.swapped,
        c.affine.range != 0,
        static_cast<uint32_t>(v.walk)};
    KernelCall call(kernels::kernel_id(kernel), specialization);
    for (const Contraction& phase : phases) call.read(*phase.affine.tensor);
    call.read(*c.gathered.tensor).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    if (c.weights != nullptr) call.read(*c.weights);
    if (choice != nullptr) choice->ranges->read_by(call);
    if (sees) call.write(c.gathered.range, HalfRanges::kFound);
    const Grid grid = Grid::linear(groups * args.size());
    const auto asked = seldom_grid(choice, grid);
    if (runtime::profiling()) profile(phases, plan);
    const size_t bytes = args.size() * sizeof(ConvArgs);
    if (asked) return call.dispatch_pointer(args.data(), bytes, asked->address());
    call.dispatch_pointer(args.data(), bytes, grid);
}

constexpr kernels::KernelFamily kSum(shaders::conv::kernels_with<ConvArgs>, {"conv_sum_"},
                                     {"f32", "i32", "i64"});  // by Compute

void sum_parts(const Contraction& c, const Tensor& parts, const Plan& plan, Compute compute,
               const HalfChoice* choice) {
    const Variant v = variant_of({&c, 1}, Block::Four, false);
    ConvArgs args = arguments(c, v);
    args.affine.base = kernels::address(parts);
    args.k = narrow(parts.size(0));
    set_choice(args, choice);
    const uint32_t workgroup = kernels::flat_workgroup();
    const int64_t g = c.g.count(), matrix = c.affine.rows * g;
    const uint64_t results = static_cast<uint64_t>(c.groups) * matrix;
    // Many results of few parts are words of four; these lie in two rows and one image at most.
    constexpr uint64_t kMostParts = 16;
    const bool follow = run_of(c.g, c.target.g).stride == 1;
    const bool quads = uses_shared_memory(runtime::device().info()) && compute == Compute::F32 && follow &&
                       matrix % 4 == 0 && g >= 4 && args.k <= kMostParts;
    const bool wide = quads && v.wide_out && c.target.plain_end >= c.g.plain;
    auto call = kSum(0, static_cast<size_t>(compute))
                    .call({.workgroup = workgroup,
                           .type_affine = kernels::code(parts.scalar_type()),
                           .type_out = kernels::code(c.target.tensor->scalar_type()),
                           .has_bias = c.target.bias != nullptr,
                           .wide_out = wide,
                           .tile_m = quads ? 4u : 1u,
                           .spatial = v.spatial,
                           .plain_fast_row = c.g.plain_fastest});
    call.read(parts).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    if (choice != nullptr) choice->ranges->read_by(call);
    const Grid grid = kernels::flat_grid(quads ? results / 4 : results);
    const auto asked = seldom_grid(choice, grid);
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
    if (plan.arithmetic != Arithmetic::Lanes) return Block::Granule;
    return plan.tile->m == 1 ? Block::Single : Block::Four;
}

Variant variant_for(std::span<const Contraction> some, const Plan& plan, bool swapped) {
    if (some[0].direct == Direct::None) return variant_of(some, block_of(plan), swapped);
    Variant v = variant_of(some, Block::Four, false);
    // Pairs of results lie in the lanes as by taps.
    if (some[0].direct == Direct::Image) v.walk = Walk::Taps;
    return v;
}

// A number for what the speed depends on besides the sizes of the product: windows and the order of memory.
uint64_t variant_number(const Contraction& c) {
    uint64_t number = 1;
    const auto add = [&](int64_t value) {
        number = (number ^ static_cast<uint64_t>(value)) * 0x100000001b3ull;
    };
    for (int axis = 0; axis < 3; ++axis) {
        for (const int64_t value : {c.g.spatial[axis], c.k.spatial[axis], c.gathered.row_step[axis],
                                    c.gathered.k_step[axis], c.gathered.start[axis]}) {
            add(value);
        }
    }
    for (const bool value :
         {c.g.plain_fastest, c.k.plain_fastest, c.target.row_stride == 1, c.target.bias != nullptr,
          c.gathered.range != 0 && c.gathered.tensor->scalar_type() == at::kFloat}) {
        add(value);
    }
    return number;
}

void run_parts(const Contraction& c, const Plan& plan, Compute compute, const HalfChoice* choice) {
    const auto accumulator = compute == Compute::F32   ? at::kFloat
                             : compute == Compute::I32 ? at::kInt
                                                       : at::kLong;
    const int64_t f = c.affine.rows, g = c.g.count();
    const Tensor parts =
        at::empty({plan.parts, c.groups, f, g}, c.target.tensor->options().dtype(accumulator));
    Contraction partial = c;
    // Contiguous in the order of g's digits, the plain one first or last.
    const Triple& s = c.g.spatial;
    const int64_t unit = c.g.plain_fastest ? c.g.plain : 1;
    partial.target = {
        &parts, 0,
        g,      {{s[1] * s[2] * unit, s[2] * unit, unit}, c.g.plain_fastest ? 1 : s[0] * s[1] * s[2]},
        f * g,  nullptr};
    const bool swapped = plan.swapped && plan.arithmetic == Arithmetic::Lanes;
    dispatch({&partial, 1}, variant_for({&partial, 1}, plan, swapped), plan, compute, choice);
    sum_parts(c, parts, plan, compute, choice);
}

// The tiles' lanes store to columns of their own, eight lanes a line of results.
bool has_lines_of_lanes() {
    return matrix_subgroup(runtime::device().info()) >= 8;
}

// How many bf16 parts of an f32 factor are wanted.
uint32_t parts_of_f32() {
    return at::globalContext().allowTF32CuDNN(at::Float32Op::CONV) ? 2 : 3;
}

}  // namespace

Arithmetic arithmetic_of(const Contraction& c) {
    constexpr int64_t kFewestRows = 8;
    const auto type = c.affine.range != 0 ? at::kHalf : c.affine.tensor->scalar_type();
    if (c.affine.range == 0 && type != c.gathered.tensor->scalar_type()) return Arithmetic::Lanes;
    if (!has_lines_of_lanes() || (c.groups > 1 && c.affine.rows < kFewestRows)) return Arithmetic::Lanes;
    return choose_arithmetic(runtime::device().info(), type == at::kHalf, type == at::kBFloat16,
                             type == at::kFloat, type == at::kFloat ? parts_of_f32() : 3);
}

bool may_be_halves(const Tensor& factor) {
    return factor.scalar_type() == at::kFloat && parts_of_f32() < 3 && has_lines_of_lanes() &&
           choose_arithmetic(runtime::device().info(), true, false, false, 3) == Arithmetic::F16;
}

Words reads_words(std::span<const Contraction> phases) {
    // Tiles count words of eight halves by 31 bits.
    constexpr uint64_t kMostBytes = uint64_t{1} << 35;
    for (const Contraction& c : phases) {
        if (c.affine.tensor->storage().nbytes() > kMostBytes) return {false, false};
        if (c.gathered.tensor->storage().nbytes() > kMostBytes) return {false, false};
    }
    const Variant v = variant_of(phases, Block::Granule, false);
    const auto wide = [](BlockLayout layout) {
        return layout == BlockLayout::AlongWide || layout == BlockLayout::RowsWide;
    };
    return {wide(v.affine), wide(v.gathered)};
}

bool reads_positions(const Contraction& c) {
    const Variant v = variant_of({&c, 1}, Block::Four, false);
    return v.gathered == BlockLayout::RowsWide && v.walk == Walk::Linear && v.wide_out;
}

bool stores_words(std::span<const Contraction> phases) {
    return variant_of(phases, Block::Four, false).wide_out;
}

void sum_parts(const Contraction& c, const Tensor& parts) {
    sum_parts(c, parts, {}, Compute::F32, nullptr);
}

void run_contractions(std::vector<Contraction> phases, int64_t longest_part, const HalfChoice* choice) {
    std::erase_if(phases, [](const Contraction& c) { return c.groups * c.affine.rows * c.g.count() == 0; });
    if (phases.empty()) return;
    const Contraction& first = phases[0];
    const Compute compute = checked_compute(*first.target.tensor);
    const auto& info = runtime::device().info();
    const int64_t f = first.affine.rows;
    int64_t g = 0, k = 0;
    for (const Contraction& c : phases) {
        g = std::max(g, c.g.count());
        k = std::max(k, c.k.count());
    }
    // Stores follow the channels where neighbouring results are neighbouring channels: the tiles of lanes let
    // rows and columns change places, those of matrix units store their columns.
    const bool swapped = uses_shared_memory(info) && first.direct == Direct::None &&
                         compute == Compute::F32 && first.target.row_stride == 1 && f > 1 &&
                         run_of(first.g, first.target.g).stride != 1;
    Problem problem;
    problem.convolution = true;
    if (compute == Compute::F32) problem.arithmetic = arithmetic_of(first);
    problem.direct = first.direct;
    if (first.direct == Direct::Pairs) problem.arithmetic = Arithmetic::BF16;
    if (problem.arithmetic != Arithmetic::Lanes && first.direct == Direct::None &&
        !reads_words(phases).both()) {
        TORCH_INTERNAL_ASSERT(!first.affine.pairs && !first.gathered.pairs);
        problem.arithmetic = Arithmetic::Lanes;
    }
    const bool exchanged = swapped && problem.arithmetic == Arithmetic::Lanes;
    problem.batch = first.groups * static_cast<int64_t>(phases.size());
    problem.m = exchanged ? g : f;
    problem.n = exchanged ? f : g;
    problem.k = k;
    problem.floating = compute == Compute::F32;
    // Depthwise weight gradients: few, long sums.
    problem.k_contiguous = problem.arithmetic == Arithmetic::Lanes && f < 4 && g < 64 && k >= 256;
    problem.may_cut = phases.size() == 1;
    problem.longest_part = longest_part;
    problem.variant = variant_number(first);
    // What seldom runs is not measured either.
    Plan plan = choose_plan(info, problem, choice != nullptr && !choice->fit);
    plan.swapped = swapped && plan.tile->m > 1;
    const bool padded = first.target.plain_end < first.g.plain;
    if (phases.size() == 1 && (plan.parts > 1 || padded)) return run_parts(first, plan, compute, choice);
    plan.parts = 1;
    plan.part_k = narrow((k + 15) / 16 * 16 + 16);
    for (size_t begin = 0; begin < phases.size(); begin += kMostPhases) {
        const auto some =
            std::span<const Contraction>(phases).subspan(begin, std::min(kMostPhases, phases.size() - begin));
        dispatch(some, variant_for(some, plan, plan.swapped), plan, compute, choice);
    }
}

}  // namespace anymps::ops
