#include "ops/conv/variant.h"

#include <algorithm>

#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

using at::Tensor;

bool multiple_of_4(std::initializer_list<int64_t> values) {
    return std::all_of(values.begin(), values.end(), [](int64_t v) { return v % 4 == 0; });
}

bool aligned(const Tensor& tensor, int64_t offset) {
    const uint64_t item = tensor.element_size();
    return (kernels::address(tensor) + offset * item) % std::min<uint64_t>(16, 4 * item) == 0;
}

bool all_strides_multiple_of_4(const Digits& digits, const DigitStrides& strides) {
    for (int axis = 0; axis < 3; ++axis) {
        if (digits.spatial[axis] > 1 && strides.spatial[axis] % 4 != 0) return false;
    }
    return digits.plain == 1 || strides.plain % 4 == 0;
}

BlockLayout affine_layout(const Contraction& c) {
    const AffineFactor& a = c.affine;
    const int64_t group_stride = c.groups > 1 ? a.group_stride : 0,
                  row_stride = a.rows > 1 ? a.row_stride : 0;
    const bool wide = aligned(*a.tensor, a.offset) && multiple_of_4({group_stride});
    const Run run = run_of(c.k, a.k);
    if (run.stride == 1) {
        const bool along = wide && run.others_multiple_of_4 && multiple_of_4({run.length, row_stride});
        return along ? BlockLayout::AlongWide : BlockLayout::Along;
    }
    const bool rows = wide && row_stride == 1 && a.rows % 4 == 0 && all_strides_multiple_of_4(c.k, a.k);
    return rows ? BlockLayout::RowsWide : BlockLayout::Across;
}

// Four channels of one position lie in one word where channels are the fastest digit and have stride 1.
BlockLayout gathered_layout(const Contraction& c) {
    const GatheredFactor& b = c.gathered;
    const int64_t group_stride = c.groups > 1 ? b.group_stride : 0;
    bool wide = aligned(*b.tensor, 0) && multiple_of_4({group_stride});
    for (int axis = 0; axis < 3; ++axis) wide = wide && (b.size[axis] == 1 || b.stride[axis] % 4 == 0);
    const auto channels = [&](const Digits& fast, int64_t stride, const Digits& other, int64_t other_stride) {
        return wide && fast.plain_fastest && stride == 1 && fast.plain % 4 == 0 &&
               (other.plain == 1 || other_stride % 4 == 0);
    };
    if (channels(c.k, b.k_plain_stride, c.g, b.row_plain_stride)) return BlockLayout::AlongWide;
    if (channels(c.g, b.row_plain_stride, c.k, b.k_plain_stride)) return BlockLayout::RowsWide;
    // Neighbouring threads follow the direction in which positions move by one element.
    const bool along = b.stride[2] == 1 && b.k_step[2] == 1 && c.k.spatial[2] > c.g.spatial[2];
    return along ? BlockLayout::Along : BlockLayout::Across;
}

// True when every position that can be asked for is inside the image.
bool always_inside(const Contraction& c) {
    const GatheredFactor& b = c.gathered;
    for (int axis = 0; axis < 3; ++axis) {
        int64_t first = b.start[axis], last = b.start[axis];
        for (const int64_t reach :
             {b.row_step[axis] * (c.g.spatial[axis] - 1), b.k_step[axis] * (c.k.spatial[axis] - 1)}) {
            (reach < 0 ? first : last) += reach;
        }
        if (first < 0 || last >= b.size[axis]) return false;
    }
    return true;
}

bool wide_target(const Contraction& c, bool swapped) {
    const ConvTarget& t = c.target;
    if (!aligned(*t.tensor, t.offset) || (c.groups > 1 && t.group_stride % 4 != 0)) return false;
    if (swapped) return t.row_stride == 1 && c.affine.rows % 4 == 0 && all_strides_multiple_of_4(c.g, t.g);
    const Run run = run_of(c.g, t.g);
    const int64_t row_stride = c.affine.rows > 1 ? t.row_stride : 0;
    return run.stride == 1 && run.others_multiple_of_4 && multiple_of_4({run.length, row_stride});
}

uint32_t spatial_of(const Contraction& c) {
    for (uint32_t axis = 0; axis < 2; ++axis) {
        if (c.g.spatial[axis] > 1 || c.k.spatial[axis] > 1 || c.gathered.size[axis] > 1 ||
            c.gathered.start[axis] != 0) {
            return 3 - axis;
        }
    }
    return 1;
}

Variant variant_of_one(const Contraction& c, bool swapped) {
    Variant v{};
    v.affine = affine_layout(c);
    v.gathered = gathered_layout(c);
    v.spatial = spatial_of(c);
    v.flat_k = run_of(c.k, c.affine.k).length == c.k.count();
    v.checked = !always_inside(c);
    v.wide_out = wide_target(c, swapped);
    v.swapped = swapped;
    return v;
}

// The layout that two contractions can share.
BlockLayout common(BlockLayout a, BlockLayout b) {
    if (a == b) return a;
    const auto along = [](BlockLayout l) { return l == BlockLayout::Along || l == BlockLayout::AlongWide; };
    return along(a) && along(b) ? BlockLayout::Along : BlockLayout::Across;
}

}  // namespace

Run run_of(const Digits& digits, const DigitStrides& strides) {
    int64_t sizes[4], steps[4];
    int next = 0;
    const auto add = [&](int64_t size, int64_t stride) {
        if (size != 1) {
            sizes[next] = size;
            steps[next++] = stride;
        }
    };
    if (digits.plain_fastest) add(digits.plain, strides.plain);
    for (int axis = 2; axis >= 0; --axis) add(digits.spatial[axis], strides.spatial[axis]);
    if (!digits.plain_fastest) add(digits.plain, strides.plain);
    if (next == 0) return {1, 0, true};
    Run run{sizes[0], steps[0], true};
    int digit = 1;
    for (; digit < next && steps[digit] == run.length * run.stride; ++digit) run.length *= sizes[digit];
    for (; digit < next; ++digit)
        run.others_multiple_of_4 = run.others_multiple_of_4 && steps[digit] % 4 == 0;
    return run;
}

Variant variant_of(std::span<const Contraction> contractions, bool single_rows, bool swapped) {
    Variant v = variant_of_one(contractions[0], swapped);
    for (const Contraction& c : contractions.subspan(1)) {
        const Variant other = variant_of_one(c, swapped);
        v.affine = common(v.affine, other.affine);
        v.gathered = common(v.gathered, other.gathered);
        v.spatial = std::max(v.spatial, other.spatial);
        v.flat_k = v.flat_k && other.flat_k;
        v.checked = v.checked || other.checked;
        v.wide_out = v.wide_out && other.wide_out;
    }
    // Blocks of four rows are of no use to a kernel that takes single ones.
    if (single_rows && v.affine == BlockLayout::RowsWide) v.affine = BlockLayout::Across;
    if (single_rows && v.gathered == BlockLayout::RowsWide) v.gathered = BlockLayout::Across;
    return v;
}

}  // namespace anymps::ops
