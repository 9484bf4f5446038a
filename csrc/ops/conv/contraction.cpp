#include "ops/conv/contraction.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "ops/matmul/tiles.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::FastDivider;
using kernels::Grid;
using kernels::KernelCall;

// Twins of AffineArgs, GatherArgs (shaders/lib/conv_operand.slang) and ConvArgs (shaders/conv.slang).
struct AffineArgs {
    uint64_t base, z_stride;
    uint32_t rows, row_stride;
    FastDivider k0;
    uint32_t k0_stride, k1_stride;
};
struct GatherArgs {
    uint64_t base, z_stride, i_plain_stride, k_plain_stride;
    uint32_t rows;
    FastDivider i_digits[3], k_digits[3];
    int32_t i_step[3], k_step[3], start[3];
    FastDivider divisor[3];
    uint32_t size[3], stride[3];
};
struct ConvArgs {
    AffineArgs affine;
    GatherArgs gather;
    uint64_t out, out_z, out_f, out_g0, out_g1, bias;
    uint32_t bias_f;
    FastDivider g0;
    uint32_t k, batch, part;
};

// Twin of the layouts in shaders/lib/operand.slang.
enum class BlockLayout : uint32_t { Across, Along, AlongWide, RowsWide };

// The specialization constants that one contraction shares among its kernels.
struct Variant {
    BlockLayout affine, gathered;
    uint32_t spatial;  // dimensions in use
    bool flat_k, checked, divided, wide_out, swapped;
};

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<uint32_t>::max(),
                "convolution: a size or stride of ", value, " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

bool multiple_of_4(std::initializer_list<int64_t> values) {
    return std::all_of(values.begin(), values.end(), [](int64_t v) { return v % 4 == 0; });
}

bool aligned(const Tensor& tensor) {
    return kernels::address(tensor) % std::min<uint64_t>(16, 4 * tensor.element_size()) == 0;
}

// One stride leads along all of k.
bool flat(const AffineFactor& a, int64_t k) {
    return a.k0_size == k || a.k1_stride == a.k0_size * a.k0_stride;
}

BlockLayout layout_of(const AffineFactor& a, int64_t k, int64_t groups) {
    const int64_t group_stride = groups > 1 ? a.group_stride : 0;
    const bool one_stride = flat(a, k);
    const bool wide = aligned(*a.tensor) && multiple_of_4({group_stride, one_stride ? 0 : a.k1_stride});
    if (a.k0_stride == 1 && a.k0_size > 1) {
        return wide && multiple_of_4({one_stride ? k : a.k0_size, a.row_stride}) ? BlockLayout::AlongWide
                                                                                 : BlockLayout::Along;
    }
    const bool rows = a.row_stride == 1 && wide && multiple_of_4({a.rows, a.k0_stride});
    return rows ? BlockLayout::RowsWide : BlockLayout::Across;
}

// Four channels of one position lie in one word where channels are the fastest digit and have stride 1.
BlockLayout layout_of(const GatheredFactor& b, int64_t groups) {
    const int64_t group_stride = groups > 1 ? b.group_stride : 0;
    const bool wide =
        aligned(*b.tensor) && multiple_of_4({group_stride, b.strides[0], b.strides[1], b.strides[2]});
    const auto channels = [&](const GatheredFactor::Digits& fast, const GatheredFactor::Digits& other) {
        return wide && fast.plain_fastest && fast.plain_stride == 1 && fast.plain_size % 4 == 0 &&
               (other.plain_stride % 4 == 0 || other.plain_size == 1);
    };
    if (channels(b.k, b.row)) return BlockLayout::AlongWide;
    if (channels(b.row, b.k)) return BlockLayout::RowsWide;
    // Neighbouring threads follow the direction in which positions move by one element.
    return b.k_step[2] == 1 && b.row_step[2] != 1 && b.strides[2] == 1 ? BlockLayout::Along
                                                                       : BlockLayout::Across;
}

void fill_dividers(FastDivider (&dividers)[3], const GatheredFactor::Digits& digits, uint32_t spatial) {
    uint32_t next = 0;
    if (digits.plain_fastest) dividers[next++] = FastDivider(narrow(digits.plain_size));
    for (uint32_t s = 0; s < spatial && next < 3; ++s)
        dividers[next++] = FastDivider(narrow(digits.spatial_sizes[2 - s]));
}

GatherArgs gather_args(const GatheredFactor& b, uint32_t spatial) {
    GatherArgs args{};
    args.base = kernels::address(*b.tensor);
    args.z_stride = b.group_stride;
    args.i_plain_stride = b.row.plain_size > 1 ? b.row.plain_stride : 0;
    args.k_plain_stride = b.k.plain_size > 1 ? b.k.plain_stride : 0;
    args.rows = narrow(b.row.count());
    fill_dividers(args.i_digits, b.row, spatial);
    fill_dividers(args.k_digits, b.k, spatial);
    for (int axis = 0; axis < 3; ++axis) {
        args.i_step[axis] = static_cast<int32_t>(b.row_step[axis]);
        args.k_step[axis] = static_cast<int32_t>(b.k_step[axis]);
        args.start[axis] = static_cast<int32_t>(b.start[axis]);
        args.divisor[axis] = FastDivider(narrow(b.divisor[axis]));
        args.size[axis] = narrow(b.sizes[axis]);
        args.stride[axis] = b.sizes[axis] > 1 ? narrow(b.strides[axis]) : 0;
    }
    return args;
}

ConvArgs arguments(const Contraction& c, uint32_t spatial) {
    ConvArgs args{};
    const AffineFactor& a = c.affine;
    args.affine = {kernels::address(*a.tensor),
                   static_cast<uint64_t>(a.group_stride),
                   narrow(a.rows),
                   a.rows > 1 ? narrow(a.row_stride) : 0,
                   FastDivider(narrow(a.k0_size)),
                   narrow(a.k0_stride),
                   narrow(a.k1_stride)};
    args.gather = gather_args(c.gathered, spatial);
    const ConvTarget& t = c.target;
    args.out = kernels::address(*t.tensor);
    args.out_z = t.group_stride;
    args.out_f = t.f_stride;
    args.out_g0 = t.g0_stride;
    args.out_g1 = t.g1_stride;
    args.g0 = FastDivider(narrow(t.g0_size));
    if (t.bias != nullptr) {
        args.bias = kernels::address(*t.bias);
        args.bias_f = narrow(t.bias->stride(0));
    }
    args.k = narrow(c.gathered.k.count());
    args.batch = narrow(c.groups);
    return args;
}

// True when every position that can be asked for is inside the image.
bool always_inside(const GatheredFactor& b) {
    for (int axis = 0; axis < 3; ++axis) {
        int64_t first = b.start[axis], last = b.start[axis];
        for (const int64_t reach : {b.row_step[axis] * (b.row.spatial_sizes[axis] - 1),
                                    b.k_step[axis] * (b.k.spatial_sizes[axis] - 1)}) {
            (reach < 0 ? first : last) += reach;
        }
        if (first < 0 || last >= b.sizes[axis] || b.divisor[axis] != 1) return false;
    }
    return true;
}

bool wide_target(const Contraction& c, bool swapped) {
    const ConvTarget& t = c.target;
    const int64_t group_stride = c.groups > 1 ? t.group_stride : 0;
    if (!aligned(*t.tensor) || !multiple_of_4({group_stride, t.g1_stride})) return false;
    return swapped ? t.f_stride == 1 && multiple_of_4({c.affine.rows, t.g0_stride})
                   : t.g0_stride == 1 && multiple_of_4({t.g0_size, c.affine.rows > 1 ? t.f_stride : 0});
}

Variant variant_of(const Contraction& c, bool single_rows, bool swapped) {
    const GatheredFactor& b = c.gathered;
    Variant v{};
    v.spatial = 1;
    for (uint32_t axis = 0; axis < 2; ++axis) {
        const bool used = b.row.spatial_sizes[axis] > 1 || b.k.spatial_sizes[axis] > 1 || b.sizes[axis] > 1 ||
                          b.start[axis] != 0;
        if (used) v.spatial = std::max(v.spatial, 3 - axis);
    }
    v.affine = layout_of(c.affine, b.k.count(), c.groups);
    v.gathered = layout_of(b, c.groups);
    // Blocks of four rows are of no use to a kernel that takes single ones.
    if (single_rows && v.affine == BlockLayout::RowsWide) v.affine = BlockLayout::Across;
    if (single_rows && v.gathered == BlockLayout::RowsWide) v.gathered = BlockLayout::Across;
    v.flat_k = flat(c.affine, b.k.count());
    v.divided = b.divisor != std::array<int64_t, 3>{1, 1, 1};
    v.checked = !always_inside(b);
    v.swapped = swapped;
    v.wide_out = wide_target(c, swapped);
    return v;
}

void dispatch(const Contraction& c, const Plan& plan, Compute compute, bool swapped) {
    const auto& info = runtime::device().info();
    const Tile& tile = *plan.tile;
    const Variant v = variant_of(c, tile.m == 1, swapped);
    ConvArgs args = arguments(c, v.spatial);
    args.part = plan.part_k;
    const std::string kernel =
        std::string("conv_") + tile.style + (swapped ? "_swapped_" : "_") + kernels::suffix(compute);
    const GatheredFactor& b = c.gathered;
    const uint32_t specialization[] = {tile.workgroup,
                                       info.subgroup_size,
                                       kernels::code(c.affine.tensor->scalar_type()),
                                       kernels::code(b.tensor->scalar_type()),
                                       kernels::code(c.target.tensor->scalar_type()),
                                       static_cast<uint32_t>(v.affine),
                                       static_cast<uint32_t>(v.gathered),
                                       c.target.bias != nullptr,
                                       v.wide_out,
                                       tile.m,
                                       tile.n,
                                       tile.k,
                                       tile.thread_m,
                                       tile.thread_n,
                                       v.spatial,
                                       v.flat_k,
                                       b.row.plain_fastest,
                                       b.k.plain_fastest,
                                       v.checked,
                                       v.divided};
    KernelCall call(kernels::kernel_id(kernel), specialization);
    call.read(*c.affine.tensor).read(*b.tensor).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    const int64_t f = c.affine.rows, g = b.row.count();
    call.dispatch_pointer(args,
                          Grid::linear(plan_groups(info, plan, c.groups, swapped ? g : f, swapped ? f : g)));
}

void sum_parts(const Contraction& c, const Tensor& parts, Compute compute) {
    ConvArgs args = arguments(c, 3);
    args.affine.base = kernels::address(parts);
    args.k = narrow(parts.size(0));
    const uint32_t workgroup = runtime::device().info().is_software ? 8 : 128;
    KernelCall call(std::string("conv_sum_") + kernels::suffix(compute),
                    {workgroup, 0, kernels::code(parts.scalar_type()), 0,
                     kernels::code(c.target.tensor->scalar_type()), 0, 0, c.target.bias != nullptr});
    call.read(parts).write(*c.target.tensor);
    if (c.target.bias != nullptr) call.read(*c.target.bias);
    const uint64_t results = static_cast<uint64_t>(c.groups) * c.affine.rows * c.gathered.row.count();
    call.dispatch_pointer(args, Grid::linear((results + workgroup - 1) / workgroup));
}

}  // namespace

void Contraction::run() const {
    const auto type = target.tensor->scalar_type();
    const Compute compute = kernels::compute_of(type);
    const bool known = compute == Compute::F32 || type == at::kInt || type == at::kLong ||
                       type == at::kShort || type == at::kChar || type == at::kByte;
    TORCH_CHECK_NOT_IMPLEMENTED(known, "\"convolution\" not implemented for '", c10::toString(type), "'");
    const auto& info = runtime::device().info();
    const bool swapped =
        uses_shared_memory(info) && compute == Compute::F32 && target.f_stride == 1 && target.g0_stride != 1;
    const int64_t f = affine.rows, g = gathered.row.count();
    Problem problem;
    problem.batch = groups;
    problem.m = swapped ? g : f;
    problem.n = swapped ? f : g;
    problem.k = gathered.k.count();
    problem.floating = compute == Compute::F32;
    problem.k_contiguous = f < 4 && g < 64 && problem.k >= 256;  // depthwise weight gradients: few, long sums
    problem.longest_part = longest_part;
    const Plan plan = choose_plan(info, problem);
    if (plan.parts == 1) return dispatch(*this, plan, compute, swapped);
    const auto accumulator = compute == Compute::F32   ? at::kFloat
                             : compute == Compute::I32 ? at::kInt
                                                       : at::kLong;
    const Tensor parts = at::empty({plan.parts, groups, f, g}, target.tensor->options().dtype(accumulator));
    Contraction partial = *this;
    partial.target = {&parts, g, g, 1, 0, f * g, nullptr};
    dispatch(partial, plan, compute, false);
    sum_parts(*this, parts, compute);
}

}  // namespace anymps::ops
