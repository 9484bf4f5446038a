#include "ops/conv/problem.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "ops/conv/text.h"

namespace anymps::ops {
namespace {

// outer, channels: of a group.
ConvTensor image_of(const Memory& memory, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                    int64_t outer, int64_t channels) {
    ConvTensor image{memory, outer, channels, strides[0], 0, strides[1]};
    image.padded = channels;
    std::copy(sizes.begin() + 2, sizes.end(), image.sizes.end() - (sizes.size() - 2));
    std::copy(strides.begin() + 2, strides.end(), image.strides.end() - (sizes.size() - 2));
    return image;
}

}  // namespace

bool ConvTensor::is_contiguous(int64_t groups) const {
    int64_t next = 1;
    const auto follows = [&](int64_t size, int64_t stride) {
        const bool result = size == 1 || stride == next;
        next *= size;
        return result;
    };
    bool result = true;
    for (int axis = 2; axis >= 0; --axis) result = follows(sizes[axis], strides[axis]) && result;
    result = follows(groups * channels, channel_stride) && result;
    return (follows(outer, outer_stride) && result) || next == 0;
}

ConvTensor ConvTensor::as(Form way) const {
    ConvTensor result = *this;
    if (form == way) return result;
    if (form == Form::Plain) {
        result.form = way == Form::ScaledF16 ? Form::ScaledOnLoad : Form::Plain;
        return result;
    }
    assert_that(form == Form::Bf16x2OrScaledF16);
    result.form = way;
    if (way == Form::ScaledF16) result.memory.type = DType::F16;
    return result;
}

ConvTensor activation_of(const Memory& memory, std::span<const int64_t> sizes,
                         std::span<const int64_t> strides, int64_t groups) {
    ConvTensor image = image_of(memory, sizes, strides, sizes[0], sizes[1] / groups);
    image.group_stride = image.channels * image.channel_stride;
    return image;
}

ConvTensor filter_of(const Memory& memory, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                     int64_t groups) {
    ConvTensor image = image_of(memory, sizes, strides, sizes[0] / groups, sizes[1]);
    image.group_stride = image.outer * image.outer_stride;
    return image;
}

ConvTensor transposed(ConvTensor filter) {
    std::swap(filter.outer, filter.channels);
    std::swap(filter.outer_stride, filter.channel_stride);
    filter.padded = filter.channels;
    return filter;
}

ConvParams::ConvParams(std::span<const int64_t> strides, std::span<const int64_t> paddings,
                       std::span<const int64_t> dilations, int64_t spatial)
    : spatial(spatial) {
    const auto at = [](std::span<const int64_t> values, int64_t i) {
        return values.size() == 1 ? values[0] : values[i];
    };
    for (int64_t i = 0; i < spatial; ++i) {
        const int64_t axis = 3 - spatial + i;
        stride[axis] = at(strides, i);
        padding[axis] = at(paddings, i);
        dilation[axis] = at(dilations, i);
    }
}

uint64_t ConvProblem::hash() const {
    static_assert(sizeof(*this) % sizeof(uint64_t) == 0);
    // Two chains of a multiplication a word each: a long one would wait for every product.
    std::array<uint64_t, sizeof(*this) / 8> words;
    std::memcpy(words.data(), this, sizeof(*this));
    uint64_t even = 0x9e3779b97f4a7c15ull, odd = 0xc2b2ae3d27d4eb4full;
    for (size_t i = 0; i + 1 < words.size(); i += 2) {
        even = std::rotl((even ^ words[i]) * 0x9e3779b97f4a7c15ull, 29);
        odd = std::rotl((odd ^ words[i + 1]) * 0xc2b2ae3d27d4eb4full, 31);
    }
    even ^= words.back();
    return (even ^ std::rotl(odd, 17)) * 0xff51afd7ed558ccdull;
}

bool ConvDevice::holds_fragments(DType type) const {
    if (info.is_software || gemm::matrix_subgroup(info) != 32) return false;
    const gemm::FragmentLayout found = layout(type);
    return found.known && found.b_known;
}

bool ConvDevice::may_use_scaled_f16(DType type) const {
    return type == DType::F32 && tf32 && has_lines_of_lanes() &&
           gemm::choose_arithmetic(info, true, false, false, 3) == gemm::Arithmetic::F16;
}

}  // namespace anymps::ops
