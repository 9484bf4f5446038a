#include "ops/conv/contraction.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "ops/conv/variant.h"
#include "ops/matmul/tiles.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::FastDivider;
using kernels::Grid;
using kernels::KernelCall;

// Twins of the structs in shaders/lib/conv_operand.slang and shaders/conv.slang.
struct DigitSizes {
    FastDivider sizes[3];
};
struct DigitStrideArgs {
    uint64_t values[4];
};
struct AffineArgs {
    uint64_t base, z_stride, row_stride;
    DigitStrideArgs k_strides;
    uint32_t flat_stride, rows;
};
struct GatherArgs {
    uint64_t base, z_stride, row_plain_stride, k_plain_stride;
    uint32_t rows;
    int32_t row_step[3], k_step[3], start[3];
    uint32_t size[3], stride[3];
};
struct ConvArgs {
    AffineArgs affine;
    GatherArgs gather;
    DigitSizes row_digits, k_digits;
    uint64_t out, out_z, out_f;
    DigitStrideArgs out_g;
    uint64_t bias;
    uint32_t bias_stride, k, batch, part, phase_groups, phases;
};

constexpr size_t kMostPhases = 128;  // of one dispatch, in the argument ring

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(),
                "convolution: a size or stride of ", value, " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

// The sizes of the fast digits; the slowest is what is left.
DigitSizes sizes_of(const Digits& digits, uint32_t spatial) {
    DigitSizes result;
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

GatherArgs gather_args(const Contraction& c) {
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
    args.gather = gather_args(c);
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
    args.k = narrow(c.k.count());
    args.batch = narrow(c.groups);
    args.phases = 1;
    return args;
}

void dispatch(std::span<const Contraction> phases, const Variant& v, const Plan& plan, Compute compute) {
    const auto& info = runtime::device().info();
    const Tile& tile = *plan.tile;
    std::vector<ConvArgs> args;
    uint64_t groups = 0;
    for (const Contraction& c : phases) {
        args.push_back(arguments(c, v));
        args.back().part = plan.part_k;
        const int64_t f = c.affine.rows, g = c.g.count();
        groups = std::max(groups, plan_groups(info, plan, c.groups, v.swapped ? g : f, v.swapped ? f : g));
    }
    args[0].phase_groups = narrow(static_cast<int64_t>(groups));
    args[0].phases = static_cast<uint32_t>(args.size());
    const Contraction& c = phases[0];
    const bool matrix = plan.arithmetic != Arithmetic::Lanes;
    const std::string kernel = std::string("conv_") + tile.kernel + (v.swapped ? "_swapped_" : "_") +
                               (matrix ? suffix(plan.arithmetic) : kernels::suffix(compute));
    const uint32_t specialization[] = {tile.workgroup,
                                       matrix ? matrix_subgroup(info) : info.subgroup_size,
                                       kernels::code(c.affine.tensor->scalar_type()),
                                       kernels::code(c.gathered.tensor->scalar_type()),
                                       kernels::code(c.target.tensor->scalar_type()),
                                       static_cast<uint32_t>(v.affine),
                                       static_cast<uint32_t>(v.gathered),
                                       c.target.bias != nullptr,
                                       v.wide_out,
                                       tile.m,
                                       0,
                                       0,
                                       0,
                                       0,
                                       v.spatial,
                                       v.flat_k,
                                       c.g.plain_fastest,
                                       c.k.plain_fastest,
                                       v.checked};
    KernelCall call(kernels::kernel_id(kernel), specialization);
    call.read(*c.affine.tensor).read(*c.gathered.tensor).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    call.dispatch_pointer(args.data(), args.size() * sizeof(ConvArgs), Grid::linear(groups * args.size()));
}

void sum_parts(const Contraction& c, const Tensor& parts, Compute compute) {
    const Variant v = variant_of({&c, 1}, Block::Four, false);
    ConvArgs args = arguments(c, v);
    args.affine.base = kernels::address(parts);
    args.k = narrow(parts.size(0));
    const uint32_t workgroup = kernels::flat_workgroup();
    const uint32_t specialization[] = {workgroup,
                                       0,
                                       kernels::code(parts.scalar_type()),
                                       0,
                                       kernels::code(c.target.tensor->scalar_type()),
                                       0,
                                       0,
                                       c.target.bias != nullptr,
                                       0,
                                       4,
                                       0,
                                       0,
                                       0,
                                       0,
                                       v.spatial,
                                       0,
                                       c.g.plain_fastest};
    KernelCall call(kernels::kernel_id(std::string("conv_sum_") + kernels::suffix(compute)), specialization);
    call.read(parts).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    const uint64_t results = static_cast<uint64_t>(c.groups) * c.affine.rows * c.g.count();
    call.dispatch_pointer(args, kernels::flat_grid(results));
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

// Matrix units, unless most rows of their tiles would be idle (depthwise convolutions).
Arithmetic arithmetic_of(const Contraction& c) {
    constexpr int64_t kFewestRows = 8;
    const auto type = c.affine.tensor->scalar_type();
    if (type != c.gathered.tensor->scalar_type() || c.affine.rows < kFewestRows) return Arithmetic::Lanes;
    return choose_arithmetic(runtime::device().info(), type == at::kHalf, type == at::kBFloat16,
                             type == at::kFloat, 3);
}

void run_parts(const Contraction& c, const Plan& plan, Compute compute) {
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
    dispatch({&partial, 1}, variant_of({&partial, 1}, block_of(plan), plan.swapped), plan, compute);
    sum_parts(c, parts, compute);
}

}  // namespace

void run_contractions(std::vector<Contraction> phases, int64_t longest_part) {
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
    // Rows and columns change places where neighbouring results are neighbouring channels.
    const bool swapped = uses_shared_memory(info) && compute == Compute::F32 &&
                         first.target.row_stride == 1 && f > 1 && run_of(first.g, first.target.g).stride != 1;
    Problem problem;
    problem.batch = first.groups * static_cast<int64_t>(phases.size());
    problem.m = swapped ? g : f;
    problem.n = swapped ? f : g;
    problem.k = k;
    problem.floating = compute == Compute::F32;
    if (problem.floating) problem.arithmetic = arithmetic_of(first);
    problem.k_contiguous = f < 4 && g < 64 && k >= 256;  // depthwise weight gradients: few, long sums
    problem.longest_part = longest_part;
    Plan plan = choose_plan(info, problem);
    plan.swapped = swapped && plan.tile->m > 1;
    if (phases.size() == 1 && plan.parts > 1) return run_parts(first, plan, compute);
    plan.parts = 1;
    plan.part_k = narrow((k + 15) / 16 * 16 + 16);
    for (size_t begin = 0; begin < phases.size(); begin += kMostPhases) {
        const auto some =
            std::span<const Contraction>(phases).subspan(begin, std::min(kMostPhases, phases.size() - begin));
        dispatch(some, variant_of(some, block_of(plan), plan.swapped), plan, compute);
    }
}

}  // namespace anymps::ops
