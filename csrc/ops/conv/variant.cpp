#include "ops/conv/variant.h"

#include <algorithm>
#include <numeric>

#include "kernels/kernel_call.h"
#include "ops/matmul/tiles.h"
#include "runtime/device.h"
#include "vulkan/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

// Loads of `elements` that follow one another: what sizes and strides must be multiples of.
struct Wide {
    int64_t elements;
    uint64_t most_bytes = 16;

    bool divides(std::initializer_list<int64_t> values) const {
        return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v % elements == 0; });
    }
    bool aligned(const Tensor& tensor, int64_t offset) const {
        const uint64_t item = tensor.element_size();
        return (kernels::address(tensor) + offset * item) % std::min(most_bytes, elements * item) == 0;
    }
    bool divides(const Digits& digits, const DigitStrides& strides) const {
        for (int axis = 0; axis < 3; ++axis) {
            if (digits.spatial[axis] > 1 && strides.spatial[axis] % elements != 0) return false;
        }
        return digits.plain == 1 || strides.plain % elements == 0;
    }
};

// flat: one stride leads along all of k.
BlockLayout affine_layout(const Contraction& c, Block block, const Wide& wide, bool flat) {
    const AffineFactor& a = c.affine;
    const int64_t group_stride = c.groups > 1 ? a.group_stride : 0,
                  row_stride = a.rows > 1 || a.padded ? a.row_stride : 0;
    const bool aligned = wide.aligned(*a.tensor, a.offset) && wide.divides({group_stride});
    const bool granules = block == Block::Granule;
    const Run run = run_of(c.k, a.k);
    if (run.stride == 1) {
        if (aligned && wide.divides({run.divisor_of_others, run.length, row_stride}))
            return BlockLayout::AlongWide;
        return granules && flat ? BlockLayout::AlongShifted : BlockLayout::Along;
    }
    if (row_stride != 1) return BlockLayout::Across;
    if (aligned && (a.padded || wide.divides({a.rows})) && wide.divides(c.k, a.k))
        return BlockLayout::RowsWide;
    return granules ? BlockLayout::RowsShifted : BlockLayout::Across;
}

// The gathered factor's strides as those of digits: where no position is outside the image it is affine too.
DigitStrides strides_of(const GatheredFactor& b, const Triple& steps, int64_t plain) {
    return {{steps[0] * b.stride[0], steps[1] * b.stride[1], steps[2] * b.stride[2]}, plain};
}

// Four channels of one position lie in one word where channels are the fastest digit and have stride 1;
// without padding, so do neighbouring positions.
BlockLayout gathered_layout(const Contraction& c, const Wide& wide, bool checked) {
    const GatheredFactor& b = c.gathered;
    const int64_t group_stride = c.groups > 1 ? b.group_stride : 0;
    const bool base = wide.aligned(*b.tensor, 0) && wide.divides({group_stride});
    bool aligned = base;
    for (int axis = 0; axis < 3; ++axis)
        aligned = aligned && (b.size[axis] == 1 || wide.divides({b.stride[axis]}));
    const auto channels = [&](const Digits& fast, int64_t stride, const Digits& other, int64_t other_stride) {
        return aligned && fast.plain_fastest && stride == 1 && wide.divides({fast.plain}) &&
               (other.plain == 1 || wide.divides({other_stride}));
    };
    if (channels(c.k, b.k_plain_stride, c.g, b.row_plain_stride)) return BlockLayout::AlongWide;
    if (channels(c.g, b.row_plain_stride, c.k, b.k_plain_stride)) return BlockLayout::RowsWide;
    const DigitStrides of_rows = strides_of(b, b.row_step, b.row_plain_stride),
                       of_k = strides_of(b, b.k_step, b.k_plain_stride);
    int64_t start = 0;
    for (int axis = 0; axis < 3; ++axis) start += b.size[axis] > 1 ? b.start[axis] * b.stride[axis] : 0;
    const auto positions = [&](const Digits& fast, const DigitStrides& strides, const Digits& other,
                               const DigitStrides& other_strides) {
        const Run run = run_of(fast, strides);
        return base && !checked && run.stride == 1 &&
               wide.divides({run.length, run.divisor_of_others, start}) && wide.divides(other, other_strides);
    };
    if (positions(c.g, of_rows, c.k, of_k)) return BlockLayout::RowsWide;
    if (positions(c.k, of_k, c.g, of_rows)) return BlockLayout::AlongWide;
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
    const Wide wide{4};
    const ConvTarget& t = c.target;
    if (!wide.aligned(*t.tensor, t.offset) || (c.groups > 1 && !wide.divides({t.group_stride}))) return false;
    if (swapped) return t.row_stride == 1 && wide.divides({c.affine.rows}) && wide.divides(c.g, t.g);
    const Run run = run_of(c.g, t.g);
    const int64_t row_stride = c.affine.rows > 1 ? t.row_stride : 0;
    return run.stride == 1 && wide.divides({run.divisor_of_others, run.length, row_stride});
}

Walk walk_of(const Contraction& c, BlockLayout affine, BlockLayout gathered, bool checked) {
    // Of the matrix tiles, and bits that a thread keeps of a row's taps.
    constexpr int64_t kTileK = 32, kMostTaps = 32;
    const Run run = gathered_run(c);
    if (!checked && run.length == c.k.count() && run.stride >= 0) return Walk::Linear;
    const bool channels = affine == BlockLayout::AlongWide && gathered == BlockLayout::AlongWide &&
                          c.k.plain_fastest && c.k.plain % kTileK == 0;
    const bool taps = c.k.positions() > 0 && c.k.positions() <= kMostTaps;
    return channels && taps ? Walk::Taps : Walk::Digits;
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

Variant variant_of_one(const Contraction& c, Block block, bool swapped) {
    Variant v{};
    const Wide wide{block == Block::Granule ? 8 : 4};
    v.spatial = spatial_of(c);
    v.flat_k = run_of(c.k, c.affine.k).length == c.k.count();
    v.checked = !always_inside(c);
    v.affine = affine_layout(c, block, wide, v.flat_k);
    v.gathered = gathered_layout(c, wide, v.checked);
    v.walk = walk_of(c, v.affine, v.gathered, v.checked);
    v.wide_out = wide_target(c, swapped);
    v.swapped = swapped;
    const uint64_t products = uint64_t(c.groups) * c.affine.rows * c.g.count() * c.k.count();
    if (is_small(runtime::device().info(), products)) v.affine = v.gathered = BlockLayout::Across;
    return v;
}

// The layout that two contractions can share.
BlockLayout common(BlockLayout a, BlockLayout b) {
    if (a == b) return a;
    const auto along = [](BlockLayout l) {
        return l == BlockLayout::Along || l == BlockLayout::AlongWide || l == BlockLayout::AlongShifted;
    };
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
    if (next == 0) return {1, 0, 0};
    Run run{sizes[0], steps[0], 0};
    int digit = 1;
    for (; digit < next && steps[digit] == run.length * run.stride; ++digit) run.length *= sizes[digit];
    for (; digit < next; ++digit) run.divisor_of_others = std::gcd(run.divisor_of_others, steps[digit]);
    return run;
}

Run gathered_run(const Contraction& c) {
    return run_of(c.k, strides_of(c.gathered, c.gathered.k_step, c.gathered.k_plain_stride));
}

Variant variant_of(std::span<const Contraction> contractions, Block block, bool swapped) {
    Variant v = variant_of_one(contractions[0], block, swapped);
    for (const Contraction& c : contractions.subspan(1)) {
        const Variant other = variant_of_one(c, block, swapped);
        v.affine = common(v.affine, other.affine);
        v.gathered = common(v.gathered, other.gathered);
        v.spatial = std::max(v.spatial, other.spatial);
        v.flat_k = v.flat_k && other.flat_k;
        v.checked = v.checked || other.checked;
        v.wide_out = v.wide_out && other.wide_out;
        if (v.walk != other.walk) v.walk = Walk::Digits;
    }
    // Blocks of four rows are of no use to a kernel that takes single ones.
    if (block == Block::Single && v.affine == BlockLayout::RowsWide) v.affine = BlockLayout::Across;
    if (block == Block::Single && v.gathered == BlockLayout::RowsWide) v.gathered = BlockLayout::Across;
    return v;
}

}  // namespace anymps::ops
