#include "ops/conv/variant.h"

#include <algorithm>
#include <numeric>

#include "gemm/tiles.h"

namespace anymps::ops {

using gemm::BlockLayout;
namespace {

// Loads of `elements` that follow one another: what sizes and strides must be multiples of.
struct Wide {
    int64_t elements;

    bool divides(std::initializer_list<int64_t> values) const {
        return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v % elements == 0; });
    }
    bool aligned(const Memory& memory, int64_t offset) const {
        const auto bytes = static_cast<uint64_t>(elements * memory.element_size());
        return memory.is_aligned(std::min(Memory::kAlignment, bytes), offset);
    }
    bool divides(const Coordinates& coordinates, const CoordinateStrides& strides) const {
        for (int axis = 0; axis < 3; ++axis) {
            if (coordinates.spatial[axis] > 1 && strides.spatial[axis] % elements != 0) return false;
        }
        return coordinates.n_or_c == 1 || strides.n_or_c % elements == 0;
    }
};

// flat: one stride leads along all of k.
BlockLayout strided_layout(const ImplicitGemm& c, Block block, const Wide& wide, bool flat) {
    const StridedOperand& a = c.strided;
    const int64_t group_stride = c.groups > 1 ? a.group_stride : 0,
                  row_stride = a.rows > 1 || a.padded ? a.row_stride : 0;
    const bool aligned = wide.aligned(a.memory, a.offset) && wide.divides({group_stride});
    const bool vec8s = block == Block::Vec8;
    const Run run = run_of(c.k, a.k);
    if (run.stride == 1) {
        if (aligned && wide.divides({run.divisor_of_others, run.length, row_stride}))
            return BlockLayout::KMajorVec;
        return vec8s && flat ? BlockLayout::KMajorUnaligned : BlockLayout::KMajor;
    }
    if (row_stride != 1) return BlockLayout::Strided;
    if (aligned && (a.padded || wide.divides({a.rows})) && wide.divides(c.k, a.k))
        return BlockLayout::MnMajorVec;
    return vec8s ? BlockLayout::MnMajorUnaligned : BlockLayout::Strided;
}

// The im2col operand's strides as those of coordinates: where no position is outside the image it is affine
// too.
CoordinateStrides strides_of(const Im2colOperand& b, const Dim3& steps, int64_t plain) {
    return {{steps[0] * b.stride[0], steps[1] * b.stride[1], steps[2] * b.stride[2]}, plain};
}

// Four channels of one position lie in one word where channels are the fastest coordinate and have stride 1;
// without padding, so do neighbouring positions.
BlockLayout im2col_layout(const ImplicitGemm& c, const Wide& wide, bool checked) {
    const Im2colOperand& b = c.im2col;
    const int64_t group_stride = c.groups > 1 ? b.group_stride : 0;
    const bool base = wide.aligned(b.memory, 0) && wide.divides({group_stride});
    bool aligned = base;
    for (int axis = 0; axis < 3; ++axis)
        aligned = aligned && (b.size[axis] == 1 || wide.divides({b.stride[axis]}));
    const auto channels = [&](const Coordinates& fast, int64_t stride, const Coordinates& other,
                              int64_t other_stride) {
        return aligned && fast.channels_last && stride == 1 && wide.divides({fast.n_or_c}) &&
               (other.n_or_c == 1 || wide.divides({other_stride}));
    };
    if (channels(c.k, b.k_nc_stride, c.g, b.row_nc_stride)) return BlockLayout::KMajorVec;
    if (channels(c.g, b.row_nc_stride, c.k, b.k_nc_stride)) return BlockLayout::MnMajorVec;
    const CoordinateStrides of_rows = strides_of(b, b.row_step, b.row_nc_stride),
                            of_k = strides_of(b, b.k_step, b.k_nc_stride);
    int64_t start = 0;
    for (int axis = 0; axis < 3; ++axis) start += b.size[axis] > 1 ? b.start[axis] * b.stride[axis] : 0;
    const auto positions = [&](const Coordinates& fast, const CoordinateStrides& strides,
                               const Coordinates& other, const CoordinateStrides& other_strides) {
        const Run run = run_of(fast, strides);
        return base && !checked && run.stride == 1 &&
               wide.divides({run.length, run.divisor_of_others, start}) && wide.divides(other, other_strides);
    };
    if (positions(c.g, of_rows, c.k, of_k)) return BlockLayout::MnMajorVec;
    if (positions(c.k, of_k, c.g, of_rows)) return BlockLayout::KMajorVec;
    // Neighbouring threads follow the direction in which positions move by one element.
    const bool along = b.stride[2] == 1 && b.k_step[2] == 1 && c.k.spatial[2] > c.g.spatial[2];
    return along ? BlockLayout::KMajor : BlockLayout::Strided;
}

// True when every position that can be asked for is inside the image.
bool always_inside(const ImplicitGemm& c) {
    const Im2colOperand& b = c.im2col;
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

bool wide_target(const ImplicitGemm& c, bool swapped) {
    const Wide wide{4};
    const ConvTarget& t = c.target;
    if (t.epilogue.operand.defined() && !wide.aligned(t.epilogue.operand, t.offset)) return false;
    if (!wide.aligned(t.memory, t.offset) || (c.groups > 1 && !wide.divides({t.group_stride}))) return false;
    if (swapped) return t.row_stride == 1 && wide.divides({c.strided.rows}) && wide.divides(c.g, t.g);
    const Run run = run_of(c.g, t.g);
    const int64_t row_stride = c.strided.rows > 1 ? t.row_stride : 0;
    return run.stride == 1 && wide.divides({run.divisor_of_others, run.length, row_stride});
}

IteratorMode iterator_mode_of(const ImplicitGemm& c, BlockLayout strided, BlockLayout im2col, bool checked) {
    // Of the matrix tiles, and bits that a thread keeps of a row's taps.
    constexpr int64_t kTileK = 32, kMaxTaps = 32;
    const Run run = im2col_run(c);
    if (!checked && run.length == c.k.count() && run.stride >= 0) return IteratorMode::Linear;
    const bool channels = strided == BlockLayout::KMajorVec && im2col == BlockLayout::KMajorVec &&
                          c.k.channels_last && c.k.n_or_c % kTileK == 0;
    const bool taps = c.k.positions() > 0 && c.k.positions() <= kMaxTaps;
    return channels && taps ? IteratorMode::Taps : IteratorMode::Coordinates;
}

uint32_t spatial_of(const ImplicitGemm& c) {
    for (uint32_t axis = 0; axis < 2; ++axis) {
        if (c.g.spatial[axis] > 1 || c.k.spatial[axis] > 1 || c.im2col.size[axis] > 1 ||
            c.im2col.start[axis] != 0) {
            return 3 - axis;
        }
    }
    return 1;
}

Variant variant_of_one(const vulkan::DeviceInfo& device, const ImplicitGemm& c, Block block, bool swapped) {
    Variant v{};
    const Wide wide{block == Block::Vec8 ? 8 : 4};
    v.spatial = spatial_of(c);
    v.flat_k = run_of(c.k, c.strided.k).length == c.k.count();
    v.checked = !always_inside(c);
    v.strided = strided_layout(c, block, wide, v.flat_k);
    v.im2col = im2col_layout(c, wide, v.checked);
    v.mode = iterator_mode_of(c, v.strided, v.im2col, v.checked);
    v.wide_out = wide_target(c, swapped);
    v.swapped = swapped;
    if (gemm::is_small(device, c.products())) v.strided = v.im2col = BlockLayout::Strided;
    return v;
}

// The layout that two GEMMs can share.
BlockLayout common(BlockLayout a, BlockLayout b) {
    if (a == b) return a;
    const auto along = [](BlockLayout l) {
        return l == BlockLayout::KMajor || l == BlockLayout::KMajorVec || l == BlockLayout::KMajorUnaligned;
    };
    return along(a) && along(b) ? BlockLayout::KMajor : BlockLayout::Strided;
}

}  // namespace

Run run_of(const Coordinates& coordinates, const CoordinateStrides& strides) {
    int64_t sizes[4], steps[4];
    int next = 0;
    const auto add = [&](int64_t size, int64_t stride) {
        if (size != 1) {
            sizes[next] = size;
            steps[next++] = stride;
        }
    };
    if (coordinates.channels_last) add(coordinates.n_or_c, strides.n_or_c);
    for (int axis = 2; axis >= 0; --axis) add(coordinates.spatial[axis], strides.spatial[axis]);
    if (!coordinates.channels_last) add(coordinates.n_or_c, strides.n_or_c);
    if (next == 0) return {1, 0, 0};
    Run run{sizes[0], steps[0], 0};
    int coordinate = 1;
    for (; coordinate < next && steps[coordinate] == run.length * run.stride; ++coordinate)
        run.length *= sizes[coordinate];
    for (; coordinate < next; ++coordinate)
        run.divisor_of_others = std::gcd(run.divisor_of_others, steps[coordinate]);
    return run;
}

Run im2col_run(const ImplicitGemm& c) {
    return run_of(c.k, strides_of(c.im2col, c.im2col.k_step, c.im2col.k_nc_stride));
}

Variant variant_of(const vulkan::DeviceInfo& device, std::span<const ImplicitGemm> gemms, Block block,
                   bool swapped) {
    Variant v = variant_of_one(device, gemms[0], block, swapped);
    for (const ImplicitGemm& c : gemms.subspan(1)) {
        const Variant other = variant_of_one(device, c, block, swapped);
        v.strided = common(v.strided, other.strided);
        v.im2col = common(v.im2col, other.im2col);
        v.spatial = std::max(v.spatial, other.spatial);
        v.flat_k = v.flat_k && other.flat_k;
        v.checked = v.checked || other.checked;
        v.wide_out = v.wide_out && other.wide_out;
        if (v.mode != other.mode) v.mode = IteratorMode::Coordinates;
    }
    // Blocks of four rows are of no use to a kernel that takes single ones.
    if (block == Block::Scalar && v.strided == BlockLayout::MnMajorVec) v.strided = BlockLayout::Strided;
    if (block == Block::Scalar && v.im2col == BlockLayout::MnMajorVec) v.im2col = BlockLayout::Strided;
    return v;
}

Vectorizable is_vectorizable(const vulkan::DeviceInfo& device, std::span<const ImplicitGemm> gemms) {
    for (const ImplicitGemm& c : gemms)
        if (c.strided.memory.huge || c.im2col.memory.huge) return {false, false};
    const Variant v = variant_of(device, gemms, Block::Vec8, false);
    const auto is_vector = [](BlockLayout layout) {
        return layout == BlockLayout::KMajorVec || layout == BlockLayout::MnMajorVec;
    };
    return {is_vector(v.strided), is_vector(v.im2col)};
}

}  // namespace anymps::ops
